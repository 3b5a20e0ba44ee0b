#pragma once
/** Generators that have a file of their own (generators_v.c: V placement); generators.c has the table. Internal to pipeline. */
#include "pipeline/schedule.h"

void zbv(const Layout *layout, int rank, ActionList *out);
void vhalf(const Layout *layout, int rank, ActionList *out);
void vmin(const Layout *layout, int rank, ActionList *out);
void dualpipev(const Layout *layout, int rank, ActionList *out);
