#include "train/step_folder.h"
#include "io/file.h"

#include <stdlib.h>
#include <string.h>

static const char temporary_end[] = ".tmp", aside_end[] = ".tmp.old";

const char *step_name(Arena *arena, int64_t step)
{
    return text_format(arena, "step-%06lld", (long long)step);
}

int64_t step_of(const char *name)
{
    char *end;
    if (strncmp(name, "step-", 5) != 0 || name[5] < '0' || name[5] > '9') return -1;
    int64_t step = strtoll(name + 5, &end, 10);
    return *end ? -1 : step;
}

static const char *hidden(const char *dir, const char *suffix, Arena *arena)
{
    const char *slash = strrchr(dir, '/'), *name = slash ? slash + 1 : dir;
    return text_format(arena, "%.*s.%s%s", (int)(name - dir), dir, name, suffix);
}

const char *folder_temporary(const char *dir, Arena *arena)
{
    return hidden(dir, temporary_end, arena);
}

Status folder_begin(const char **out, const char *dir, Arena *arena)
{
    *out = folder_temporary(dir, arena);
    TRY(dir_remove_tree(*out));
    return dir_create(*out);
}

Status folder_end(const char *dir, Arena *arena)
{
    const char *temporary = folder_temporary(dir, arena), *aside = hidden(dir, aside_end, arena);
    TRY(dir_sync(temporary));
    TRY(dir_remove_tree(aside));
    if (dir_exists(dir)) TRY(file_rename(aside, dir));
    return file_rename(dir, temporary);
}

Status folder_forget(const char *dir, Arena *arena)
{
    return dir_remove_tree(hidden(dir, aside_end, arena));
}

void folder_drop(const char *dir, Arena *arena)
{
    const char *why = text_copy(arena, status_message());
    if (dir_remove_tree(folder_temporary(dir, arena)) != OK) status_fail("%s", why);
}

/* It loses its name first: what a kill leaves is no folder that looks whole. */
static Status remove_named(const char *dir, Arena *arena)
{
    const char *temporary = folder_temporary(dir, arena);
    TRY(dir_remove_tree(temporary));
    TRY(file_rename(temporary, dir));
    return dir_remove_tree(temporary);
}

Status folder_prune(const char *dir, int64_t keep, int64_t step, Arena *arena)
{
    char **names;
    int n;
    TRY(dir_list(arena, dir, &names, &n));
    for (int i = 0; i < n; i++) {
        int64_t own = step_of(names[i]), newer = 0;
        if (own < 0 || own > step) continue;
        for (int j = 0; j < n; j++) {
            int64_t other = step_of(names[j]);
            newer += other > own && other <= step;
        }
        if (newer >= keep) TRY(remove_named(path_join(arena, dir, names[i]), arena));
    }
    return OK;
}

/* NAME of ".NAME<suffix>", if it is one of ours; else NULL. */
static const char *name_within(const char *entry, const char *suffix, Arena *arena)
{
    size_t n = strlen(entry), m = strlen(suffix);
    if (entry[0] != '.' || n <= m + 1 || strcmp(entry + n - m, suffix) != 0) return NULL;
    const char *name = text_copy_n(arena, entry + 1, n - m - 1);
    return step_of(name) >= 0 || !strcmp(name, "final") ? name : NULL;
}

Status folder_recover(const char *dir, Log *log, Arena *arena)
{
    char **names;
    int n;
    if (!dir_exists(dir)) return OK;
    TRY(dir_list(arena, dir, &names, &n));
    for (int i = 0; i < n; i++) {
        const char *name = name_within(names[i], aside_end, arena);
        const char *path = name ? path_join(arena, dir, name) : NULL;
        if (!path || dir_exists(path)) continue;
        TRY(file_rename(path, path_join(arena, dir, names[i])));
        log_line(log, "%s: has its name back, which an interrupted save had taken", path);
    }
    return OK;
}

static bool is_left(const char *entry, Arena *arena)
{
    return name_within(entry, temporary_end, arena) || name_within(entry, aside_end, arena) ||
           !strncmp(entry, "latest.tmp-", 11);
}

Status folder_clear(const char *dir, Log *log, Arena *arena)
{
    char **names;
    int n;
    TextBuffer gone;
    if (!dir_exists(dir)) return OK;
    TRY(dir_list(arena, dir, &names, &n));
    text_buffer_init(&gone, arena);
    for (int i = 0; i < n; i++) {
        if (!is_left(names[i], arena)) continue;
        TRY(dir_remove_tree(path_join(arena, dir, names[i])));
        text_append_format(&gone, "%s%s", gone.length ? ", " : "", names[i]);
    }
    if (gone.length) log_line(log, "%s: removed what an interrupted save left: %s", dir, gone.text);
    return OK;
}
