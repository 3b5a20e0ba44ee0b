/* JSON lines as samples of every format; what is accepted is packed and made into microbatches. */
#include "data/batch.h"
#include "data/document.h"
#include "data/pack.h"
#include "fuzz_target.h"
#include "io/jsonl.h"

#include <math.h>

enum { VOCAB = 100 };

static void check_row(const Row *row)
{
    must(row->n_tokens >= 1 && row->n_segments >= 1 && row->cu_seqlens[0] == 0);
    for (int i = 0; i < row->n_segments; i++) must(row->cu_seqlens[i] < row->cu_seqlens[i + 1]);
    must(row->cu_seqlens[row->n_segments] == row->n_tokens);
    for (int64_t t = 0; t < row->n_tokens; t++) {
        int32_t label = row_label(row, t);
        must(row->id_t[t] >= 0 && row->id_t[t] < VOCAB);
        must(label == -100 || (label >= 0 && label < VOCAB));
        must((label != -100) == row->trained_t[t]);
    }
}

/** What is read must not be optimised away. */
static volatile unsigned all_bytes;

/** All bytes of a text are there to be read. */
static unsigned sum_bytes(const char *text, size_t n)
{
    unsigned sum = 0;
    for (size_t i = 0; i < n; i++) sum += (unsigned char)text[i];
    must(text[n] == '\0');
    return sum;
}

static void check_document(const Document *document, TokenStore *samples)
{
    switch (document->kind) {
    case DOCUMENT_TEXT: all_bytes += sum_bytes(document->text, document->bytes); break;
    case DOCUMENT_MESSAGES:
        must(document->n_messages >= 1);
        for (int i = 0; i < document->n_messages; i++) {
            const Message *m = &document->message[i];
            must(m->role >= 0 && m->role < ROLE_COUNT);
            all_bytes += sum_bytes(m->text, m->bytes);
        }
        break;
    case DOCUMENT_IDS: {
        check_row(&document->row);
        must(token_store_add(samples, &document->row, true) == OK);
        /* Its first segment once more, to be packed. */
        Row first = document->row;
        first.n_segments = 1;
        first.n_tokens = first.cu_seqlens[1];
        must(token_store_add(samples, &first, false) == OK);
        break;
    }
    }
}

static void check_rows(const TokenStore *samples, Arena *arena)
{
    int64_t *order = ARENA_NEW(arena, int64_t, samples->n_items + 1), n_cut;
    for (int64_t i = 0; i < samples->n_items; i++) order[i] = samples->n_items - 1 - i;
    for (int kind = 0; kind < PACK_COUNT; kind++) {
        TokenStore packed;
        must(pack_rows(&packed, &n_cut, samples, order, samples->n_items, (PackKind)kind, 7) == OK);
        int64_t n = packed.n_items;
        Row *row = ARENA_NEW(arena, Row, n + 1);
        for (int64_t r = 0; r < n; r++) {
            row[r] = token_store_row(&packed, r);
            check_row(&row[r]);
            must(packed.fixed[r] || row[r].n_tokens <= 7);
        }
        const BatchConfig config = {.reduction = (LossReduction)kind};
        BatchTotals totals;
        MicroBatch *mb = batch_build_rank(&totals, row, n, 0, 1, &config, arena);
        double sum = 0;
        for (int64_t r = 0; r < n; r++)
            for (int64_t t = 0; t < mb[r].n_tokens; t++) sum += mb[r].weight_t[t];
        must(fabs(sum - (totals.weight > 0 ? 1 : 0)) < 1e-9);
        token_store_free(&packed);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    Arena arena;
    arena_init(&arena, "fuzz");
    TokenStore samples;
    token_store_init(&samples);
    JsonlReader reader;
    must(jsonl_open_memory(&reader, "fuzz", n ? (const char *)data : "", n) == OK);
    for (;;) {
        json_t *value;
        Status st = jsonl_next(&reader, &value);
        if (st == OK && !value) break;
        if (st != OK) continue;
        int accepted = 0, by_auto = 0;
        for (int format = 0; format < DATA_FORMAT_COUNT; format++) {
            Document document;
            if (document_parse(&document, value, reader.place, (DataFormat)format, VOCAB, &arena) !=
                OK)
                continue;
            accepted += format != DATA_AUTO;
            by_auto |= format == DATA_AUTO;
            check_document(&document, &samples);
        }
        must(accepted >= by_auto); /* auto takes nothing that no format takes */
    }
    jsonl_close(&reader);
    check_rows(&samples, &arena);
    token_store_free(&samples);
    arena_free(&arena);
    return 0;
}
