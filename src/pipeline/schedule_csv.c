#include "pipeline/schedule_text.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

enum { NUMBER_MAX = 1 << 20 };

static const char *const skipped_names[] = {"UNSHARD", "RESHARD", "REDUCE_GRAD"};

typedef struct Reader {
    const char *place;
    int line, cell; /* from 1, for messages */
    ActionList *list_r;
    int n_ranks, n_stages, n_mb, n_actions;
    bool has_comm;
} Reader;

typedef struct Text {
    const char *at, *end;
} Text;

static Status refuse(const Reader *reader, Text cell, const char *reason)
{
    int n = cell.end - cell.at > 40 ? 40 : (int)(cell.end - cell.at);
    char shown[41];
    for (int i = 0; i < n; i++)
        shown[i] = cell.at[i] >= ' ' && cell.at[i] <= '~' ? cell.at[i] : '?';
    shown[n] = '\0';
    return FAIL(ERR_FORMAT, "%s:%d: cell %d: %s (found \"%s\")", reader->place, reader->line,
                reader->cell, reason, shown);
}

static Text trim(Text t)
{
    while (t.at < t.end && (*t.at == ' ' || *t.at == '\t')) t.at++;
    while (t.at < t.end && (t.end[-1] == ' ' || t.end[-1] == '\t' || t.end[-1] == '\r')) t.end--;
    if (t.end - t.at >= 2 && *t.at == '"' && t.end[-1] == '"') {
        t.at++;
        t.end--;
    }
    return t;
}

static bool take_number(Text *t, int *out)
{
    const char *start = t->at;
    int n = 0;
    for (; t->at < t->end && *t->at >= '0' && *t->at <= '9'; t->at++)
        if ((n = n * 10 + (*t->at - '0')) > NUMBER_MAX) return false;
    *out = n;
    return t->at > start;
}

static int take_name(Text *t, const char *const *names, int n_names)
{
    Text name = *t;
    while (t->at < t->end && ((*t->at >= 'A' && *t->at <= 'Z') || *t->at == '_')) t->at++;
    size_t n = (size_t)(t->at - name.at);
    for (int k = 0; k < n_names; k++)
        if (strlen(names[k]) == n && memcmp(names[k], name.at, n) == 0) return k;
    t->at = name.at;
    return -1;
}

static Status read_action(Reader *reader, Text cell, ActionList *list)
{
    Text t = cell;
    int stage, mb, kind;
    if (!take_number(&t, &stage)) return refuse(reader, cell, "expected a stage number first");
    if ((kind = take_name(&t, action_names, ACT_REDUCE)) < 0) {
        enum { N = sizeof skipped_names / sizeof skipped_names[0] };
        if (take_name(&t, skipped_names, N) >= 0 && t.at == t.end) return OK;
        return refuse(reader, cell, "expected F, I, W, B, SEND_F, RECV_F, SEND_B or RECV_B");
    }
    if (!take_number(&t, &mb) || t.at != t.end)
        return refuse(reader, cell, "expected a microbatch number at the end");
    schedule_emit(list, (ActionKind)kind, stage, mb);
    reader->n_actions++;
    if (stage >= reader->n_stages) reader->n_stages = stage + 1;
    if (mb >= reader->n_mb) reader->n_mb = mb + 1;
    reader->has_comm |= !action_is_compute((ActionKind)kind);
    return OK;
}

/* "(0F5;7B2)OVERLAP_F_B": its parts, one after the other. */
static Status read_overlap(Reader *reader, Text cell, ActionList *list)
{
    static const char tail[] = ")OVERLAP_F_B";
    size_t n = (size_t)(cell.end - cell.at);
    if (n < sizeof tail || memcmp(cell.end - (sizeof tail - 1), tail, sizeof tail - 1) != 0)
        return refuse(reader, cell, "expected (ACTION;ACTION)OVERLAP_F_B");
    Text inside = {cell.at + 1, cell.end - (sizeof tail - 1)};
    while (inside.at <= inside.end) {
        const char *end = memchr(inside.at, ';', (size_t)(inside.end - inside.at));
        if (!end) end = inside.end;
        TRY(read_action(reader, trim((Text){inside.at, end}), list));
        inside.at = end + 1;
    }
    return OK;
}

static Status read_line(Reader *reader, Text line, Arena *arena)
{
    int capacity = 1;
    for (const char *c = line.at; c < line.end; c++) capacity += *c == ',' || *c == ';';
    ActionList *list = &reader->list_r[reader->n_ranks++];
    TRY(arena_alloc(arena, &list->at, (size_t)capacity, sizeof(Action)));
    reader->cell = 0;
    while (line.at <= line.end) {
        const char *end = memchr(line.at, ',', (size_t)(line.end - line.at));
        if (!end) end = line.end;
        Text cell = trim((Text){line.at, end});
        reader->cell++;
        if (cell.at < cell.end)
            TRY((*cell.at == '(' ? read_overlap : read_action)(reader, cell, list));
        line.at = end + 1;
    }
    return OK;
}

/* A stage is where its forwards are; peers follow from that. */
static Status place_stages(Schedule *s, const char *place)
{
    for (int stage = 0; stage < s->n_stages; stage++) s->rank_of_stage[stage] = -1;
    for (int r = 0; r < s->n_ranks; r++)
        for (int k = 0; k < s->list[r].n; k++) {
            const Action *a = &s->list[r].at[k];
            if (a->kind == ACT_F && s->rank_of_stage[a->stage] < 0) s->rank_of_stage[a->stage] = r;
        }
    for (int stage = 0; stage < s->n_stages; stage++)
        if (s->rank_of_stage[stage] < 0)
            return FAIL(ERR_FORMAT, "%s: stage %d of %d has no forward", place, stage, s->n_stages);
    for (int r = 0; r < s->n_ranks; r++)
        for (int k = 0; k < s->list[r].n; k++) {
            Action *a = &s->list[r].at[k];
            if (action_is_compute(a->kind)) continue;
            int other = a->stage + (a->kind == ACT_SEND_F || a->kind == ACT_RECV_B ? 1 : -1);
            if (other >= 0 && other < s->n_stages) a->peer = s->rank_of_stage[other];
        }
    return OK;
}

Status schedule_parse_csv(Schedule **out, const char *text, size_t bytes, const char *place,
                          Arena *arena)
{
    Reader reader = {.place = place};
    Text all = {text, text + bytes};
    size_t n_lines = 1;
    for (const char *c = all.at; c < all.end; c++) n_lines += *c == '\n';
    TRY(arena_alloc(arena, &reader.list_r, n_lines, sizeof(ActionList)));
    while (all.at < all.end) {
        const char *end = memchr(all.at, '\n', (size_t)(all.end - all.at));
        if (!end) end = all.end;
        Text line = {all.at, end};
        all.at = end < all.end ? end + 1 : end;
        reader.line++;
        Text shown = trim(line), rest = all;
        while (rest.at < rest.end && strchr(" \t\r\n", *rest.at) && *rest.at) rest.at++;
        if (shown.at == shown.end && rest.at == rest.end) break; /* empty lines at the end */
        TRY(read_line(&reader, line, arena));
    }
    if (reader.n_actions == 0) return FAIL(ERR_FORMAT, "%s: no actions", place);
    /* Also what keeps a few bytes of input from asking for memory by the gigabyte. */
    if ((int64_t)reader.n_stages * reader.n_mb > reader.n_actions)
        return FAIL(ERR_FORMAT,
                    "%s: %d stages and %d microbatches need at least as many forwards as their "
                    "product (found %d actions)",
                    place, reader.n_stages, reader.n_mb, reader.n_actions);
    Schedule *s;
    TRY(schedule_new(&s, reader.n_ranks, reader.n_stages, reader.n_mb, 0, arena));
    s->name = text_copy(arena, place);
    s->has_comm = reader.has_comm;
    s->list = reader.list_r;
    TRY(place_stages(s, place));
    *out = s;
    return OK;
}

Status schedule_read_csv(Schedule **out, const char *path, Arena *arena)
{
    FILE *file = fopen(path, "rb");
    if (!file) return FAIL(ERR_IO, "%s: cannot open (%s)", path, strerror(errno));
    TextBuffer text;
    text_buffer_init(&text, arena);
    char block[16384];
    for (size_t n; (n = fread(block, 1, sizeof block, file)) > 0;) text_append(&text, block, n);
    int error = ferror(file) ? errno : 0;
    fclose(file);
    if (error) return FAIL(ERR_IO, "%s: cannot read (%s)", path, strerror(error));
    return schedule_parse_csv(out, text.text, text.length, path, arena);
}
