/* SPDX-License-Identifier: BSD-3-Clause */
/* Does Slurm show each task of a node only its own GPUs?
 *
 * --gpus-per-task implies binding GPUs to tasks (srun(1), --tres-bind). In such a task of Slurm
 * 22.05, SLURM_GPUS_PER_TASK is unset. SLURM_STEP_GPUS and CUDA_VISIBLE_DEVICES are the task's,
 * SLURM_GPUS_ON_NODE is the step's, and SLURMD_TRES_BIND is gpu:per_task:1 or gpu:single:1 (24.11:
 * gres/gpu:per_task:1). With --gpu-bind=none no list of visible devices is set. */
#include <stdio.h>
#include <string.h>

#include "alloc/slurm.h"
#include "base/number.h"
#include "hostlist/idset.h"

#define GPUS_MAX 4096

/* The first of the variables that is set and not empty, or NULL. */
static const struct env_var *first_set(const struct env *env, const char *const *names,
				       size_t count)
{
	for (size_t i = 0; i < count; i++)
		if (alloc_env(env, names[i]))
			return env_find(env, names[i]);
	return NULL;
}

/* Count the devices of a visible-device list, up to the entry that ends it. */
static int count_entries(const char *list)
{
	int count = 0;

	while (*list && *list != '-' && strncmp(list, "No", 2) != 0) {
		size_t size = strcspn(list, ",");

		count++;
		list += size + (list[size] == ',');
	}
	return count;
}

/* The step's GPUs on this node, if a variable gives them; *by is that variable. */
static int gpus_of_step(const struct env *env, const struct env_var **by)
{
	const char *here = env_get(env, "SLURM_GPUS_ON_NODE"),
		   *list = env_get(env, "SLURM_STEP_GPUS");
	struct idset *set = NULL;
	int count = 0, listed = 0;

	if (here && !number_int("SLURM_GPUS_ON_NODE", here, 0, GPUS_MAX, &count, NULL))
		*by = env_find(env, "SLURM_GPUS_ON_NODE");
	if (list && !idset_parse(list, &set, NULL))
		listed = (int)idset_count(set);
	idset_free(set);
	if (listed > count) {
		count = listed;
		*by = env_find(env, "SLURM_STEP_GPUS");
	}
	return count;
}

/* The variable which shows that GPUs are bound to tasks. */
static const struct env_var *binding(const struct env *env)
{
	static const char *const binds[] = {"SLURMD_TRES_BIND", "SLURM_TRES_BIND",
					    "SLURM_GPU_BIND"};
	static const char *const each[] = {"SLURM_GPUS_PER_TASK", "SLURM_TRES_PER_TASK"};
	const struct env_var *var = first_set(env, binds, sizeof binds / sizeof *binds);

	if (var && !strstr(var->value, "none"))
		return var;
	var = first_set(env, each, sizeof each / sizeof *each);
	return var && (!strcmp(var->name, each[0]) || strstr(var->value, "gpu")) ? var : NULL;
}

bool slurm_gpus_isolated(const struct env *env, int tasks, char *out, size_t size)
{
	static const char *const lists[] = {"CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES",
					    "HIP_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL",
					    "ZE_AFFINITY_MASK"};
	const struct env_var *list = first_set(env, lists, sizeof lists / sizeof *lists),
			     *by = NULL;
	const struct env_var *bind = binding(env);
	int seen = list ? count_entries(list->value) : 0, all;
	char step[80] = "", how[160] = "";

	if (tasks < 2 || !seen || !slurm_in_step(env))
		return false;
	all = gpus_of_step(env, &by);
	if (all > seen) {
		snprintf(step, sizeof step, ", while %s is %.40s", by->name, by->value);
	} else if (bind && strstr(bind->name, "PER_TASK")) {
		all = seen * tasks; /* no variable counts the step's GPUs: each task has as many of
				       its own */
	} else {
		return false;
	}
	if (bind)
		snprintf(how, sizeof how, " (%s is %.80s)", bind->name, bind->value);
	snprintf(out, size,
		 "%s is %.80s in this task%s%s: each of the %d tasks on this node sees only %d of "
		 "its %d GPUs, because of --gpus-per-task or --gpu-bind. The node's ranks then "
		 "cannot open each other's GPU memory: NCCL and MPI copy through host memory "
		 "instead of using peer-to-peer over NVLink or PCIe, or fail with CUDA IPC errors. "
		 "Replace --gpus-per-task with --gpus-per-node=%d --gpu-bind=none: berth gives "
		 "each rank its GPU",
		 list->name, list->value, step, how, tasks, seen, all, all);
	return true;
}
