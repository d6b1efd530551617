/* SPDX-License-Identifier: BSD-3-Clause */
/* berth run: a program as a job. */
#include <argp.h>
#include <stdio.h>

#include "arguments.h"
#include "run/run.h"
#include "run/run_options.h"
#include "verb.h"

struct arguments {
	struct run_options run;
	const char *const *program; /* argv from PROGRAM on */
};

static error_t parse(int key, char *text, struct argp_state *state)
{
	struct arguments *arguments = state->input;

	switch (key) {
	case ARGP_KEY_INIT:
		state->child_inputs[0] = &arguments->run;
		return 0;
	case ARGP_KEY_ARG:
		/* ARGP_IN_ORDER: what follows is the program's own. */
		arguments->program = (const char *const *)&state->argv[state->next - 1];
		state->next = state->argc;
		return 0;
	case ARGP_KEY_END:
		if (!arguments->program) {
			struct error err;

			error_set(&err, ERR_USAGE, "which PROGRAM is to be run?");
			arguments_refuse(state, &err);
		}
		return 0;
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

int verb_run(int argc, char **argv)
{
	static const struct argp_child children[] = {{&run_options_argp, 0, NULL, 0},
						     {NULL, 0, NULL, 0}};
	static const struct argp argp = {
		.parser = parse,
		.args_doc = "[--] PROGRAM [ARGUMENTS]",
		.doc = "Run PROGRAM as a job: as many ranks as the allocation has GPUs (or slots), "
		       "each with its rank, its GPU, cores and NICs, and an address where they "
		       "meet.\v"
		       "Ends with the code of the first rank that failed (128+N for a signal), or "
		       "with "
		       "one of berth's own: 64 usage, 65 bad data, 66 input missing, 69 something "
		       "needed is unavailable, 73 output cannot be written, 76 a node or the "
		       "network "
		       "failed. Example: berth run -n 4 -- python train.py",
		.children = children,
	};
	struct arguments arguments = {0};
	int rc;

	run_options_default(&arguments.run);
	arguments_parse(&argp, argc, argv, ARGP_IN_ORDER, &arguments);
	rc = run_program(&arguments.run, arguments.program, false);
	run_options_free(&arguments.run);
	return rc;
}
