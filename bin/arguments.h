/* SPDX-License-Identifier: BSD-3-Clause */
/* The command line, read by argp; what is wrong with it is said as everything of berth's is. */
#ifndef BERTH_BIN_ARGUMENTS_H
#define BERTH_BIN_ARGUMENTS_H

#include <argp.h>

#include "base/error.h"

/* argp_parse, for all programs and verbs. What argp itself refuses (an unknown option, a missing
 * value) ends the process as arguments_refuse does; --help and --version end it with 0. While it
 * runs, stderr is kept back: parsers refuse by arguments_refuse and write nothing there. */
void arguments_parse(const struct argp *argp, int argc, char **argv, unsigned flags, void *input);

/* For parsers: say "berth: TEXT (NAME --help lists the options)" and end with ERR_USAGE. */
void arguments_refuse(const struct argp_state *state, const struct error *err)
	__attribute__((noreturn));

/* A whole number from 1 to max, or refuse it. name: the option, "--ranks". */
void arguments_number(const struct argp_state *state, const char *name, const char *text, int max,
		      int *out);

/* The place of text in choices (ends with NULL), or refuse it; expected: "on or off". */
int arguments_choice(const struct argp_state *state, const char *name, const char *text,
		     const char *const *choices, const char *expected);

#endif
