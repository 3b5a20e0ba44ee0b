#include "core/stage.h"

enum { ALIGNMENT = 64 };

static size_t routed_offset(HandOver shape)
{
    return (tensor_bytes(shape.hidden_td) + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

size_t handover_bytes(HandOver shape)
{
    if (shape.routed_2e.n_dims == 0) return tensor_bytes(shape.hidden_td);
    return routed_offset(shape) + tensor_bytes(shape.routed_2e);
}

HandOver handover_at(HandOver shape, void *block)
{
    shape.hidden_td.data = block;
    if (shape.routed_2e.n_dims != 0) shape.routed_2e.data = (char *)block + routed_offset(shape);
    return shape;
}
