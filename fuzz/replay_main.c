/* Runs a fuzzer's function over the files of its corpus, without libFuzzer: replay_<x> FOLDER... */
#include "fuzz_target.h"
#include "io/file.h"

#include <stdio.h>

int main(int argc, char **argv)
{
    Arena arena;
    arena_init(&arena, "replay");
    int runs = 0;
    for (int i = 1; i < argc; i++) {
        char **file;
        int n;
        if (paths_expand(&arena, argv[i], NULL, &file, &n) != OK) {
            fprintf(stderr, "%s\n", status_message());
            return 1;
        }
        for (int j = 0; j < n; j++) {
            MappedFile map;
            if (file_map(&map, file[j]) != OK) {
                fprintf(stderr, "%s\n", status_message());
                return 1;
            }
            LLVMFuzzerTestOneInput(map.data, map.bytes);
            file_unmap(&map);
            runs++;
        }
    }
    arena_free(&arena);
    printf("%d inputs\n", runs);
    return runs > 0 ? 0 : 1;
}
