#include "comm/placement.h"

#include <hwloc.h>
#include <stdio.h>
#include <stdlib.h>

static const char *binding_by_user(void)
{
    static const char *const names[] = {"OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY",
                                        "KMP_AFFINITY", NULL};
    for (int i = 0; names[i]; i++)
        if (getenv(names[i])) return names[i];
    return NULL;
}

/* What this thread may use, and can be bound to. NULL: not to be known. */
static hwloc_topology_t read_topology(void)
{
    /* what puts neighbours side by side; all the rest takes twice the time */
    static const hwloc_obj_type_t types[] = {HWLOC_OBJ_PACKAGE, HWLOC_OBJ_L3CACHE, HWLOC_OBJ_CORE};
    hwloc_topology_t topology;
    if (hwloc_topology_init(&topology) != 0) return NULL;
    hwloc_topology_set_all_types_filter(topology, HWLOC_TYPE_FILTER_KEEP_NONE);
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        hwloc_topology_set_type_filter(topology, types[i], HWLOC_TYPE_FILTER_KEEP_ALL);
    hwloc_bitmap_t own = hwloc_bitmap_alloc();
    bool ok = own && hwloc_topology_load(topology) == 0 &&
              hwloc_get_cpubind(topology, own, HWLOC_CPUBIND_THREAD) == 0 &&
              hwloc_set_cpubind(topology, own, HWLOC_CPUBIND_THREAD) == 0 &&
              hwloc_topology_restrict(topology, own, 0) == 0;
    hwloc_bitmap_free(own);
    if (ok) return topology;
    hwloc_topology_destroy(topology);
    return NULL;
}

static bool memory_is_free(hwloc_topology_t topology)
{
    hwloc_membind_policy_t policy;
    hwloc_bitmap_t nodes = hwloc_bitmap_alloc();
    bool is_free = nodes && hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_NUMANODE) > 1 &&
                   hwloc_get_membind(topology, nodes, &policy,
                                     HWLOC_MEMBIND_THREAD | HWLOC_MEMBIND_BYNODESET) == 0 &&
                   policy == HWLOC_MEMBIND_FIRSTTOUCH;
    hwloc_bitmap_free(nodes);
    return is_free;
}

static void say_mismatch(Placement *p, int n_ranks, int n, const char *unit)
{
    snprintf(p->text, sizeof p->text, "not pinned: %d ranks of %d threads on %d %s", n_ranks,
             p->n_threads, n, unit);
}

/* Whether they come to all processors or to all cores; a core may hold several processors. */
static bool divide(Placement *p, int n_ranks)
{
    int n_cpus = hwloc_get_nbobjs_by_type(p->topology, HWLOC_OBJ_PU);
    int n_cores = hwloc_get_nbobjs_by_type(p->topology, HWLOC_OBJ_CORE);
    if (n_cores < 1) n_cores = n_cpus;
    bool by_core = (long long)n_ranks * p->n_threads == n_cores;
    if (!by_core && (long long)n_ranks * p->n_threads != n_cpus) {
        say_mismatch(p, n_ranks, n_cores, "cores");
        return false;
    }
    p->unit = by_core && n_cores < n_cpus ? HWLOC_OBJ_CORE : HWLOC_OBJ_PU;
    p->memory = memory_is_free(p->topology);
    snprintf(p->text, sizeof p->text, "ranks pinned: %d %s%s each", p->n_threads,
             by_core ? "core" : "processor", p->n_threads == 1 ? "" : "s");
    return true;
}

void placement_find(Placement *out, int n_ranks, int n_threads, int n_cpus, bool bound)
{
    *out = (Placement){.n_threads = n_threads};
    if (n_ranks < 2) return;
    const char *user = binding_by_user();
    if (user || bound) {
        snprintf(out->text, sizeof out->text, "not pinned: %s", user ? user : "the launcher did");
        return;
    }
    if ((long long)n_ranks * n_threads > n_cpus) {
        say_mismatch(out, n_ranks, n_cpus, "processors");
        return;
    }
    out->topology = read_topology();
    if (!out->topology)
        snprintf(out->text, sizeof out->text, "not pinned: the system does not tell its cores");
    else if (!divide(out, n_ranks))
        placement_free(out);
}

void placement_free(Placement *p)
{
    if (p->topology) hwloc_topology_destroy(p->topology);
    p->topology = NULL;
}

static hwloc_bitmap_t cpus_of(const Placement *p, int here)
{
    hwloc_bitmap_t set = p->topology ? hwloc_bitmap_alloc() : NULL;
    for (int i = 0; set && i < p->n_threads; i++) {
        unsigned at = (unsigned)(here * p->n_threads + i);
        hwloc_bitmap_or(set, set,
                        hwloc_get_obj_by_type(p->topology, (hwloc_obj_type_t)p->unit, at)->cpuset);
    }
    return set;
}

/* The team may be older than this: each of its threads must be told. */
static void bind_team(const Placement *p, hwloc_const_bitmap_t set, hwloc_membind_policy_t policy)
{
#pragma omp parallel num_threads(p->n_threads)
    {
        hwloc_set_cpubind(p->topology, set, HWLOC_CPUBIND_THREAD);
        if (p->memory) hwloc_set_membind(p->topology, set, policy, HWLOC_MEMBIND_THREAD);
    }
}

void placement_enter(const Placement *p, int here)
{
    hwloc_bitmap_t set = cpus_of(p, here);
    if (set) bind_team(p, set, HWLOC_MEMBIND_BIND); /* not strict: a preference */
    hwloc_bitmap_free(set);
}

void placement_leave(const Placement *p)
{
    if (p->topology)
        bind_team(p, hwloc_topology_get_topology_cpuset(p->topology), HWLOC_MEMBIND_DEFAULT);
}

void placement_cpus(const Placement *p, int here, char *out, size_t size)
{
    hwloc_bitmap_t set = cpus_of(p, here);
    out[0] = '\0';
    if (set) hwloc_bitmap_list_snprintf(out, size, set);
    hwloc_bitmap_free(set);
}
