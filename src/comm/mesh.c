#include "comm/mesh.h"

static const char *const axis_names[AXIS_COUNT] = {
    [AXIS_PP] = "pp", [AXIS_DP] = "dp",     [AXIS_EP] = "ep",  [AXIS_SP] = "sp",
    [AXIS_TP] = "tp", [AXIS_DATA] = "data", [AXIS_EDP] = "edp"};

/* The members of an axis' groups: size of them, step world ranks apart. */
typedef struct Extent {
    int size, step;
} Extent;

static Extent extent_of(MeshAxis axis, const int size[AXIS_GIVEN])
{
    int tp = size[AXIS_TP], data = size[AXIS_DP] * size[AXIS_SP];
    switch (axis) {
    case AXIS_TP: return (Extent){tp, 1};
    case AXIS_SP: return (Extent){size[AXIS_SP], tp};
    case AXIS_DP: return (Extent){size[AXIS_DP], tp * size[AXIS_SP]};
    case AXIS_DATA: return (Extent){data, tp};
    case AXIS_EP: return (Extent){size[AXIS_EP], tp};
    case AXIS_EDP: return (Extent){data / size[AXIS_EP], tp * size[AXIS_EP]};
    default: return (Extent){size[AXIS_PP], tp * data};
    }
}

static int coord_of(Extent e, int rank)
{
    return rank / e.step % e.size;
}

Status mesh_check(const int size[AXIS_GIVEN], int n_ranks)
{
    for (int a = 0; a < AXIS_GIVEN; a++)
        if (size[a] < 1)
            return FAIL(ERR_USAGE, "parallel.%s_size: found %d, expected at least 1", axis_names[a],
                        size[a]);
    const int factor[] = {size[AXIS_PP], size[AXIS_DP], size[AXIS_SP], size[AXIS_TP]};
    int64_t product = 1;
    for (size_t k = 0; k < sizeof factor / sizeof *factor; k++)
        if (__builtin_mul_overflow(product, (int64_t)factor[k], &product)) product = INT64_MAX;
    if (product != n_ranks)
        return FAIL(ERR_USAGE,
                    "parallel: pp_size %d x dp_size %d x sp_size %d x tp_size %d = %lld ranks, but "
                    "the world has %d",
                    factor[0], factor[1], factor[2], factor[3], (long long)product, n_ranks);
    if (size[AXIS_DP] * size[AXIS_SP] % size[AXIS_EP] != 0)
        return FAIL(ERR_USAGE,
                    "parallel.ep_size: found %d, expected a divisor of dp_size %d x sp_size %d",
                    size[AXIS_EP], size[AXIS_DP], size[AXIS_SP]);
    return OK;
}

/* "0,4,8": all members if they are few, else the first, the second and the last. */
static void print_group(TextBuffer *out, Extent e, int first)
{
    enum { MANY = 8 };
    bool all = e.size <= MANY;
    for (int i = 0; i < (all ? e.size : 2); i++)
        text_append_format(out, "%s%d", i ? "," : " ", first + i * e.step);
    if (!all) text_append_format(out, ",…,%d", first + (e.size - 1) * e.step);
}

void mesh_print(TextBuffer *out, const int size[AXIS_GIVEN])
{
    enum { GROUPS = 8 }; /* shown of an axis */
    int n_ranks = size[AXIS_PP] * size[AXIS_DP] * size[AXIS_SP] * size[AXIS_TP];
    for (MeshAxis a = 0; a < AXIS_COUNT; a++) {
        Extent e = extent_of(a, size);
        if (e.size == 1) continue;
        text_append_format(out, "  %-4s %d ranks each:", axis_names[a], e.size);
        int shown = 0;
        for (int rank = 0; rank < n_ranks && shown < GROUPS; rank++) {
            if (coord_of(e, rank) != 0) continue;
            if (shown++) text_append_format(out, " |");
            print_group(out, e, rank);
        }
        text_append_format(out, "%s\n", n_ranks / e.size > shown ? " | …" : "");
    }
}

Status mesh_create(Mesh **out, Comm *world, const int size[AXIS_GIVEN], Arena *arena)
{
    TRY(mesh_check(size, world->size));
    Mesh *mesh;
    TRY(comm_agree(world, arena_alloc(arena, &mesh, 1, sizeof *mesh)));
    mesh->world = world;
    comm_self_init(&mesh->self);
    for (MeshAxis a = 0; a < AXIS_COUNT; a++) {
        Extent e = extent_of(a, size);
        int coord = coord_of(e, world->rank);
        mesh->size[a] = e.size;
        mesh->coord[a] = coord;
        mesh->axis[a] = &mesh->self;
        if (e.size == 1) continue;
        /* Ranks that differ in this coordinate only have the same rank once it is taken out. */
        TRY(comm_split(&mesh->axis[a], world, world->rank - coord * e.step, coord, arena));
    }
    *out = mesh;
    return OK;
}

void mesh_free(Mesh **out)
{
    Mesh *mesh = *out;
    *out = NULL;
    if (!mesh) return;
    for (int a = 0; a < AXIS_COUNT; a++) mesh->axis[a]->free(mesh->axis[a]);
}
