/* SPDX-License-Identifier: BSD-3-Clause */
/* berth run: a program as a job. */
#include "run/run.h"
#include "run/run_options.h"
#include "verb.h"

struct arguments {
	struct run_options run;
	char **program; /* argv from PROGRAM on */
};

static int check_arguments(void *input, struct error *err)
{
	struct arguments *arguments = input;
	int rc = run_options_by_hand(&arguments->run, err);

	if (!rc)
		rc = run_options_conflicts(&arguments->run, err);
	/* Without a program, arguments_parse reports that next. */
	return rc || !arguments->program
		       ? rc
		       : run_check_launchers(&arguments->run,
					     (const char *const *)arguments->program, err);
}

int verb_run(int argc, char **argv)
{
	static const struct arguments_command command = {
		.tables = {{options_table, offsetof(struct arguments, run.shared)},
			   {run_options_table, offsetof(struct arguments, run)},
			   {run_rendezvous_table, offsetof(struct arguments, run)}},
		.positional = {.type = ARGUMENTS_REST,
			       .offset = offsetof(struct arguments, program)},
		.check = check_arguments,
		.usage = "[--] PROGRAM [ARGUMENTS]",
		.doc = "Examples:\n"
		       "    berth run -- python train.py\n"
		       "    berth run -n 4 --log-dir logs -- python train.py\n"
		       "    berth run --max-restarts 3 --requeue -- python train.py\n\n"
		       "Run PROGRAM as a job with one rank per GPU (or slot) of the allocation. "
		       "Each rank gets its number, its GPU, cores and NICs, and an address where "
		       "all ranks meet.\vExits with the code of the first rank that failed (128+N "
		       "for a signal), or with one of berth's own: 64 usage, 65 bad data, 66 input "
		       "missing, 69 something required is unavailable, 73 output cannot be "
		       "created, 74 I/O failed, 75 stopped with work saved, 76 a node or the "
		       "network failed.",
	};
	struct arguments arguments = {0};
	int rc;

	run_options_default(&arguments.run);
	arguments_parse(&command, argc, argv, &arguments);
	rc = run_program(&arguments.run, (const char *const *)arguments.program, false);
	run_options_free(&arguments.run);
	return rc;
}
