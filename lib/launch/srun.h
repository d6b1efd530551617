/* SPDX-License-Identifier: BSD-3-Clause */
/* What the two engines for Slurm share: engine srun starts one agent a node, engine srun-ranks the
 * same, and a step with one task a rank beside them. */
#ifndef BERTH_LAUNCH_SRUN_H
#define BERTH_LAUNCH_SRUN_H

#include "launch/launcher.h"

/* As in struct engine. */
bool srun_fits(const struct alloc *alloc, const struct env *env);
int srun_start(const struct engine_job *job, struct engine_child **out, size_t *count,
	       struct error *err);
char *srun_line(const struct engine_job *job);
extern const char *const srun_asked_by[];

/* Drop what srun would take options from, and what describes somebody else's place. */
void srun_strip(struct env *env);

#endif
