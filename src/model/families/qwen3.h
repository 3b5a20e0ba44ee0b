#pragma once
#include "model/config.h"
extern const Family family_qwen3, family_qwen3_moe;
