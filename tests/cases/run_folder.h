#pragma once
/** A folder with all that a run of the program reads. Include after cmocka.h. */
#include "cases/fixtures.h"
#include "cases/runs.h"

/**
 * A new folder with model, rows.jsonl and a config.yaml that reads both in f32; `keys` are its further lines. To be removed
 * by the caller.
 */
static inline char *run_folder(const Fixture *fixture, FixtureRows rows, int times,
                               const char *keys)
{
    char *folder = folder_make(), text[2048];
    fixture_write_model(path_in(folder, "model"), fixture);
    fixture_write_rows(path_in(folder, "rows.jsonl"), rows, times, 1);
    snprintf(text, sizeof text,
             "model: {path: %s/model, dtype: f32}\n"
             "data: {train: [%s/rows.jsonl], format: ids}\n%s",
             folder, folder, keys);
    write_text(path_in(folder, "config.yaml"), text);
    return folder;
}
