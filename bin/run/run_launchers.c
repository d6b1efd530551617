/* SPDX-License-Identifier: BSD-3-Clause */
/* Programs that start ranks of their own. Without this, berth run -n 2 -- torchrun train.py would
 * be two trainings that know nothing of each other. */
#include <string.h>

#include "base/log.h"
#include "run/run.h"

static const struct {
	/* The program's name, or that of a module for python -m; verb: its first argument, if only
	 * that one starts ranks. */
	const char *name, *verb;
	const char *instead; /* NULL: start one per node */
} launchers[] = {
	{"torchrun", NULL, NULL},
	{"torch.distributed.run", NULL, NULL},
	{"torch.distributed.launch", NULL, NULL},
	{"accelerate", "launch", "berth run -n N -- python PROGRAM"},
	{"accelerate.commands.launch", NULL, "berth run -n N -- python PROGRAM"},
	{"deepspeed", NULL, "berth run -n N -- python PROGRAM"},
	{"deepspeed.launcher.runner", NULL, "berth run -n N -- python PROGRAM"},
	{"mpirun", NULL, "berth run -n N -- PROGRAM, or mpirun -n N berth exec -- PROGRAM"},
	{"mpiexec", NULL, "berth run -n N -- PROGRAM, or mpiexec -n N berth exec -- PROGRAM"},
	{"prterun", NULL, "berth run -n N -- PROGRAM, or prterun -n N berth exec -- PROGRAM"},
	{"srun", NULL, "berth run -n N -- PROGRAM, or srun -n N berth exec -- PROGRAM"},
};

static const char *base_name(const char *path)
{
	const char *slash = strrchr(path, '/');

	return slash ? slash + 1 : path;
}

/* The argument with the program's name: argv[0], or the module after python's -m. */
static size_t name_index(const char *const *argv)
{
	if (strncmp(base_name(argv[0]), "python", 6))
		return 0;
	for (size_t i = 1; argv[i] && argv[i][0] == '-'; i++) {
		if (!strcmp(argv[i], "-m") && argv[i + 1])
			return i + 1;
		if ((!strcmp(argv[i], "-W") || !strcmp(argv[i], "-X")) && argv[i + 1])
			i++;
	}
	return 0;
}

int run_check_launchers(struct run_options *options, const char *const *argv, struct error *err)
{
	size_t index = name_index(argv), i, count = sizeof launchers / sizeof *launchers;
	const char *name = base_name(argv[index]), *verb = argv[index + 1];

	/* One process, or one per node, is what the user asked for. */
	if (options->shared.plan.per_node || options->shared.plan.ranks == 1)
		return 0;
	for (i = 0; i < count; i++)
		if (!strcmp(launchers[i].name, name) &&
		    (!launchers[i].verb || (verb && !strcmp(launchers[i].verb, verb))))
			break;
	if (i == count)
		return 0;
	if (launchers[i].instead)
		return error_set(err, ERR_USAGE,
				 "%s%s%s starts ranks of its own, and each rank would run one: use "
				 "%s. Add -n 1 for a single %s, or --per-node for one per node",
				 name, launchers[i].verb ? " " : "", launchers[i].verb ? verb : "",
				 launchers[i].instead, name);
	options->shared.plan.per_node = true;
	log_user(LOG_NOTE,
		 "%s starts ranks of its own, so berth starts one per node, as with --per-node",
		 name);
	return 0;
}
