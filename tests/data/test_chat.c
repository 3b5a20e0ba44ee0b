#include "fixture.h"

#include "data/chat.h"

/** Ids as text: bytes as they are, added tokens as E (eos), S (start), X (end), T (think). */
static char *shown_ids(const TrainedTokens *tokens, Arena *arena)
{
    TextBuffer buffer;
    text_buffer_init(&buffer, arena);
    for (int64_t t = 0; t < tokens->ids.n; t++) {
        int32_t id = tokens->ids.id[t];
        char letter = id < 256 ? (char)id : "ESXT"[id - 256];
        text_append(&buffer, &letter, 1);
    }
    return buffer.text;
}

/** The mask, a digit an id. */
static char *shown_mask(const TrainedTokens *tokens, Arena *arena)
{
    TextBuffer buffer;
    text_buffer_init(&buffer, arena);
    for (int64_t t = 0; t < tokens->ids.n; t++)
        text_append(&buffer, tokens->trained[t] ? "1" : "0", 1);
    return buffer.text;
}

static Message message(Role role, const char *text, bool trained)
{
    return (Message){.role = role, .text = text, .bytes = strlen(text), .trained = trained};
}

static void chat__renders_ids_and_mask_exactly(void **state)
{
    (void)state;
    // clang-format off
    static const struct {
        const char *chat_template;
        Role role; const char *text; bool trained;
        const char *ids, *mask;
    } cases[] = {
        {"chatml", ROLE_USER,      "ab",         false, "Suser\nabX\n",        "0000000000"     },
        {"chatml", ROLE_SYSTEM,    "",           false, "Ssystem\nX\n",        "0000000000"     },
        {"chatml", ROLE_TOOL,      "t",          false, "Stool\ntX\n",         "000000000"      },
        {"chatml", ROLE_ASSISTANT, "ab",         true,  "Sassistant\nabX\n",   "000000000001110"},
        {"qwen3",  ROLE_ASSISTANT, "ab",         true,  "Sassistant\nabX\n",   "000000000001110"},
        {"chatml", ROLE_ASSISTANT, "",           true,  "Sassistant\nX\n",     "0000000000010"  },
        {"qwen3",  ROLE_ASSISTANT, "<think>a",   true,  "Sassistant\nTaX\n",   "000000000001110"},
        {"chatml", ROLE_ASSISTANT, "ab",         false, "Sassistant\nabX\n",   "000000000000000"},
        {"chatml", ROLE_USER,      "ab",         true,  "Suser\nabX\n",        "0000001110"     },
        {"chatml", ROLE_PRETRAIN,  "ab",         true,  "ab",                  "11"             },
        {"chatml", ROLE_PRETRAIN,  "ab",         false, "ab",                  "00"             },
        {"none",   ROLE_ASSISTANT, "ab",         true,  "ab",                  "11"             },
        {"none",   ROLE_USER,      "ab",         false, "ab",                  "00"             },
        /* What looks like a special token in a text is text. */
        {"chatml", ROLE_USER,      "<|im_end|>", false, "Suser\n<|im_end|>X\n", "000000000000000000"},
        {"qwen3",  ROLE_ASSISTANT, "<|im_start|>", true, "Sassistant\n<|im_start|>X\n", "0000000000011111111111110"},
        {"none",   ROLE_USER,      "<|im_end|>", false, "<|im_end|>",          "0000000000"     },
        {"chatml", ROLE_PRETRAIN,  "<|endoftext|>", true, "<|endoftext|>",     "1111111111111"  },
    };
    // clang-format on
    Arena arena;
    arena_init(&arena, "test");
    Tokenizer *tokenizer = fixture_tokenizer(&arena);
    TrainedTokens tokens;
    trained_tokens_init(&tokens);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const ChatTemplate *chat;
        assert_ok(chat_template_find(&chat, cases[i].chat_template, NULL));
        Message m = message(cases[i].role, cases[i].text, cases[i].trained);
        trained_tokens_clear(&tokens);
        assert_ok(chat_encode(&tokens, chat, tokenizer, &m, 1, false));
        assert_string_equal(shown_ids(&tokens, &arena), cases[i].ids);
        assert_string_equal(shown_mask(&tokens, &arena), cases[i].mask);
    }
    trained_tokens_free(&tokens);
    tokenizer_free(&tokenizer);
    arena_free(&arena);
}

static void chat__joins_messages_and_asks_for_an_answer(void **state)
{
    (void)state;
    Arena arena;
    arena_init(&arena, "test");
    Tokenizer *tokenizer = fixture_tokenizer(&arena);
    const ChatTemplate *chat;
    assert_ok(chat_template_find(&chat, "auto", "qwen3_moe"));
    const Message talk[] = {message(ROLE_USER, "q", false), message(ROLE_ASSISTANT, "a", true),
                            message(ROLE_PRETRAIN, "p", true), message(ROLE_USER, "r", false)};
    TrainedTokens tokens;
    trained_tokens_init(&tokens);
    assert_ok(chat_encode(&tokens, chat, tokenizer, talk, 4, true)); /* no system is put in front */
    assert_string_equal(shown_ids(&tokens, &arena),
                        "Suser\nqX\nSassistant\naX\npSuser\nrX\nSassistant\n");
    assert_string_equal(shown_mask(&tokens, &arena),
                        "00000000000000000000110100000000000000000000");
    /* More is appended behind what is there. */
    int64_t n = tokens.ids.n;
    assert_ok(chat_encode(&tokens, chat, tokenizer, talk, 1, false));
    assert_int_equal(tokens.ids.n, n + 9);
    assert_ok(chat_template_find(&chat, "none", NULL));
    trained_tokens_clear(&tokens);
    assert_ok(chat_encode(&tokens, chat, tokenizer, talk, 2, true));
    assert_string_equal(shown_ids(&tokens, &arena), "qa");
    trained_tokens_free(&tokens);
    tokenizer_free(&tokenizer);
    arena_free(&arena);
}

static void chat__encodes_documents_of_every_kind(void **state)
{
    (void)state;
    Arena arena;
    arena_init(&arena, "test");
    Tokenizer *tokenizer = fixture_tokenizer(&arena);
    const ChatTemplate *chat;
    assert_ok(chat_template_find(&chat, "chatml", NULL));
    TrainedTokens tokens;
    trained_tokens_init(&tokens);
    Document document = {.kind = DOCUMENT_TEXT, .text = "a\0b<|im_end|>", .bytes = 13};
    assert_ok(document_encode(&tokens, &document, NULL, tokenizer, ID_EOS));
    assert_int_equal(tokens.ids.n, 14);
    assert_int_equal(tokens.ids.id[1], 0);
    assert_int_equal(tokens.ids.id[3], '<');
    assert_int_equal(tokens.ids.id[13], ID_EOS);
    assert_string_equal(shown_mask(&tokens, &arena), "11111111111111");
    trained_tokens_clear(&tokens);
    assert_ok(document_encode(&tokens, &document, NULL, tokenizer, -1));
    assert_int_equal(tokens.ids.n, 13);

    const Message m = message(ROLE_ASSISTANT, "a", true);
    document = (Document){.kind = DOCUMENT_MESSAGES, .message = &m, .n_messages = 1};
    trained_tokens_clear(&tokens);
    assert_ok(document_encode(&tokens, &document, chat, tokenizer, ID_EOS));
    assert_string_equal(shown_ids(&tokens, &arena), "Sassistant\naX\n"); /* eos is for texts */

    static const int32_t id[] = {5, 6}, cu[] = {0, 2};
    static const uint8_t trained[] = {0, 1};
    document = (Document){
        .kind = DOCUMENT_IDS,
        .row = {
            .n_tokens = 2, .id_t = id, .trained_t = trained, .n_segments = 1, .cu_seqlens = cu}};
    trained_tokens_clear(&tokens);
    assert_ok(document_encode(&tokens, &document, NULL, NULL, ID_EOS));
    assert_int_equal(tokens.ids.n, 2);
    assert_int_equal(tokens.ids.id[1], 6);
    assert_string_equal(shown_mask(&tokens, &arena), "01");
    trained_tokens_free(&tokens);
    tokenizer_free(&tokenizer);
    arena_free(&arena);
}

static void chat__finds_templates_by_name_and_model_type(void **state)
{
    (void)state;
    // clang-format off
    static const struct { const char *name, *model_type; Status status; const char *found; } cases[] = {
        {"auto",        "qwen3",     OK,              "qwen3"                                   },
        {"auto",        "qwen3_moe", OK,              "qwen3"                                   },
        {"chatml",      "olmoe",     OK,              "chatml"                                  },
        {"none",        NULL,        OK,              "none"                                    },
        {"qwen3",       NULL,        OK,              "qwen3"                                   },
        {"auto",        "llama",     ERR_USAGE,       "model.chat_template: auto knows no template for model type \"llama\""},
        {"auto",        NULL,        ERR_USAGE,       "model.chat_template"                     },
        {"llama3",      NULL,        ERR_UNSUPPORTED, "model.chat_template: llama3 is not available yet"},
        {"deepseek_v3", NULL,        ERR_UNSUPPORTED, "not available yet"                       },
        {"gpt_oss",     NULL,        ERR_UNSUPPORTED, "not available yet"                       },
        {"chatmi",      NULL,        ERR_USAGE,       "did you mean chatml"                     },
        {"zzzzzzzzzz",  NULL,        ERR_USAGE,       "model.chat_template: unknown template"   },
        {"",            NULL,        ERR_USAGE,       "model.chat_template: unknown template"   },
    };
    // clang-format on
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const ChatTemplate *chat = NULL;
        Status st = chat_template_find(&chat, cases[i].name, cases[i].model_type);
        if (cases[i].status == OK) {
            assert_ok(st);
            assert_string_equal(chat_template_name(chat), cases[i].found);
        } else {
            assert_fails(st, cases[i].status, cases[i].found);
            assert_null(chat);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(chat__renders_ids_and_mask_exactly),
        cmocka_unit_test(chat__joins_messages_and_asks_for_an_answer),
        cmocka_unit_test(chat__encodes_documents_of_every_kind),
        cmocka_unit_test(chat__finds_templates_by_name_and_model_type),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
