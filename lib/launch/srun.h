/* SPDX-License-Identifier: BSD-3-Clause */
/* What the two engines for Slurm share: engine srun starts one agent a node, engine srun-ranks the
 * same, and a step with one task a rank beside them. */
#ifndef BERTH_LAUNCH_SRUN_H
#define BERTH_LAUNCH_SRUN_H

#include "launch/launcher.h"

/* As in struct engine. */
bool srun_fits(const struct alloc *alloc, const struct env *env);
int srun_start(const struct launcher_job *job, struct launcher_process **out, size_t *count,
	       struct error *err);
char *srun_command_line(const struct launcher_job *job);
extern const char *const srun_request_variables[];

/* Drop what srun would take options from, and what describes somebody else's place. */
void srun_drop_variables(struct env *env);

#endif
