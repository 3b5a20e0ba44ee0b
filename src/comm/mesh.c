#include "comm/mesh.h"

static const char *const axis_names[AXIS_COUNT] = {
    [AXIS_PP] = "pp", [AXIS_DP] = "dp", [AXIS_EP] = "ep", [AXIS_SP] = "sp", [AXIS_TP] = "tp"};

/* From the axis whose neighbours are one rank apart to the one farthest apart; ep is cut from dp and sp. */
static const MeshAxis near_to_far[] = {AXIS_TP, AXIS_SP, AXIS_DP, AXIS_PP};
enum { N_PRODUCT = sizeof near_to_far / sizeof near_to_far[0] };

const char *mesh_axis_name(MeshAxis axis)
{
    return axis_names[axis];
}

static Status check_sizes(const Comm *world, const int size[AXIS_COUNT])
{
    for (int a = 0; a < AXIS_COUNT; a++)
        if (size[a] < 1)
            return FAIL(ERR_USAGE, "parallel.%s_size: found %d, expected at least 1", axis_names[a],
                        size[a]);
    if (size[AXIS_EP] != 1)
        return FAIL(ERR_UNSUPPORTED, "parallel.ep_size %d: not available yet", size[AXIS_EP]);
    int64_t product = 1;
    for (int k = 0; k < N_PRODUCT; k++)
        if (__builtin_mul_overflow(product, (int64_t)size[near_to_far[k]], &product))
            product = INT64_MAX;
    if (product != world->size)
        return FAIL(ERR_USAGE,
                    "parallel: pp_size %d x dp_size %d x sp_size %d x tp_size %d = %lld ranks, but "
                    "the world has %d",
                    size[AXIS_PP], size[AXIS_DP], size[AXIS_SP], size[AXIS_TP], (long long)product,
                    world->size);
    return OK;
}

Status mesh_create(Mesh **out, Comm *world, const int size[AXIS_COUNT], Arena *arena)
{
    TRY(check_sizes(world, size));
    Mesh *mesh;
    TRY(comm_agree(world, arena_alloc(arena, &mesh, 1, sizeof *mesh)));
    mesh->world = world;
    comm_self_init(&mesh->self);
    for (int a = 0; a < AXIS_COUNT; a++) {
        mesh->size[a] = size[a];
        mesh->axis[a] = &mesh->self;
    }
    int stride = 1;
    for (int k = 0; k < N_PRODUCT; k++) {
        MeshAxis axis = near_to_far[k];
        int coord = world->rank / stride % size[axis];
        mesh->coord[axis] = coord;
        if (size[axis] == world->size)
            mesh->axis[axis] = world;
        else if (size[axis] > 1)
            /* Ranks that differ in this coordinate only have the same rank once it is taken out. */
            TRY(comm_split(&mesh->axis[axis], world, world->rank - coord * stride, coord, arena));
        stride *= size[axis];
    }
    *out = mesh;
    return OK;
}

void mesh_free(Mesh **out)
{
    Mesh *mesh = *out;
    *out = NULL;
    if (!mesh) return;
    for (int a = 0; a < AXIS_COUNT; a++)
        if (mesh->axis[a] != mesh->world) mesh->axis[a]->free(mesh->axis[a]);
}
