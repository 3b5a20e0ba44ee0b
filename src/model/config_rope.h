#pragma once
/** The part of config.json that says how positions are rotated. */
#include "io/json.h"
#include "model/config.h"

/**
 * Fill config->rope; max_positions is known. Old folders say rope_theta and rope_scaling, new ones rope_parameters; both may
 * be there if they agree.
 * Errors: ERR_FORMAT, ERR_UNSUPPORTED for a kind or a key that is not known; path and key are named.
 */
Status config_read_rope(ModelConfig *config, const json_t *root, const char *path,
                        Arena *arena) MUST_USE;
