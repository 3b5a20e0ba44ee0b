#include "train/optimizer.h"
#include "base/text.h"
#include "model/weights.h"

#include <math.h>
#include <string.h>

/* How many of a parameter's names match: all, none or some. */
typedef enum { MATCH_NONE, MATCH_SOME, MATCH_ALL } Match;

static Status match_param(Match *out, const char *pattern, const Param *p, const ModelConfig *model,
                          Arena *arena)
{
    Param own = param_whole(p), *one = &own;
    if (own.tied_copy) {
        own.tied_copy = false;
        own.name = "model.embed_tokens.weight";
    }
    *out = MATCH_ALL;
    if (text_matches(pattern, own.name)) return OK;
    ParamSet single = {.arena = arena, .at = &one, .n = 1};
    HfLayout *layout;
    TRY(hf_layout_create(&layout, model, &single, NULL, DTYPE_F32, false, arena));
    int n = 0;
    for (int i = 0; i < layout->n; i++) n += text_matches(pattern, layout->at[i].name);
    *out = n == 0 ? MATCH_NONE : n < layout->n ? MATCH_SOME : MATCH_ALL;
    return OK;
}

static Status check_pattern(const char *pattern, const ParamSet *whole, const ModelConfig *model,
                            Arena *arena)
{
    bool any = false;
    for (int i = 0; i < whole->n; i++) {
        ArenaMark mark = arena_mark(arena);
        Match match;
        TRY(match_param(&match, pattern, whole->at[i], model, arena));
        arena_rewind(arena, mark);
        if (match == MATCH_SOME)
            return FAIL(ERR_USAGE,
                        "optimizer.groups: match %s takes only a part of %s, which trains as one",
                        pattern, whole->at[i]->name);
        any = any || match == MATCH_ALL;
    }
    return any ? OK
               : FAIL(ERR_USAGE,
                      "optimizer.groups: match %s fits no parameter (names as inspect lists them)",
                      pattern);
}

Status optimizer_check_groups(const ParamSet *whole, const ModelConfig *model,
                              const OptimizerSection *config, Arena *arena)
{
    for (int g = 0; g < config->groups.n; g++)
        TRY(check_pattern(config->groups.at[g].match, whole, model, arena));
    return OK;
}

Status optimizer_apply_groups(ParamSet *set, const ParamSet *whole, const ModelConfig *model,
                              const OptimizerSection *config, Arena *arena)
{
    TRY(optimizer_check_groups(whole, model, config, arena));
    for (int i = 0; i < set->n; i++) {
        Param *p = set->at[i];
        if (!p->is_matrix && !config->decay_1d) p->weight_decay = 0;
        for (int g = 0; g < config->groups.n; g++) {
            const OptimizerGroup *group = &config->groups.at[g];
            ArenaMark mark = arena_mark(arena);
            Match match;
            TRY(match_param(&match, group->match, p, model, arena));
            arena_rewind(arena, mark);
            if (match != MATCH_ALL) continue;
            p->trainable = group->trainable;
            p->lr_scale = group->lr_scale;
            if (!isnan(group->weight_decay)) p->weight_decay = group->weight_decay;
            break;
        }
    }
    return OK;
}

Status optimizer_create_moments(ParamSet *set, OptimizerType type, Arena *arena)
{
    for (int i = 0; i < set->n && type == OPTIMIZER_ADAMW; i++) {
        Param *p = set->at[i];
        for (int k = 0; k < 2 && p->trainable; k++) {
            p->moment[k] = p->master;
            TRY(arena_alloc(arena, &p->moment[k].data, (size_t)tensor_size(p->master),
                            dtype_bytes(p->master.dtype)));
        }
    }
    return OK;
}

double lr_at(const LrScheduleSection *schedule, double base, int64_t step, int64_t n_steps)
{
    int64_t warmup = lr_warmup_steps(schedule, n_steps);
    if (step < warmup) return base * (double)(step + 1) / (double)warmup;
    double t = n_steps > warmup ? (double)(step - warmup) / (double)(n_steps - warmup) : 0;
    switch (schedule->type) {
    case LR_COSINE:
        return schedule->lr_min + (base - schedule->lr_min) * (1 + cos(3.141592653589793 * t)) / 2;
    case LR_LINEAR: return schedule->lr_min + (base - schedule->lr_min) * (1 - t);
    default: return base;
    }
}

void optimizer_update(ParamSet *set, const Backend *be, const OptimizerSection *config, double lr,
                      double clip, int64_t t)
{
    for (int i = 0; i < set->n; i++) {
        Param *p = set->at[i];
        if (!p->trainable) continue;
        Tensor grad = param_part(p->grad, p->kept), value = param_part(p->value, p->kept);
        double decay = isnan(p->weight_decay) ? config->weight_decay : p->weight_decay;
        if (config->type == OPTIMIZER_SGD)
            be->sgd(be, &(SgdArgs){p->master, grad, lr * p->lr_scale, decay, clip});
        else
            be->adamw(be, &(AdamWArgs){.w = p->master,
                                       .g = grad,
                                       .m = p->moment[0],
                                       .v = p->moment[1],
                                       .lr = lr * p->lr_scale,
                                       .beta1 = config->betas[0],
                                       .beta2 = config->betas[1],
                                       .eps = config->eps,
                                       .weight_decay = decay,
                                       .grad_scale = clip,
                                       .t = t});
        if (value.data != p->master.data) be->convert(be, value, p->master);
    }
}
