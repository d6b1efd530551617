/* SPDX-License-Identifier: BSD-3-Clause */
/* The verbs of berth: one row of the table in berth.c, one file verb_NAME.c each. */
#ifndef BERTH_BIN_VERB_H
#define BERTH_BIN_VERB_H

#include "base/error.h"

/* argv[0] is "berth NAME" (for argp's messages). Returns the exit code; what then cannot be written
 * to stdout is an error, too. */
struct verb {
	const char *name;
	const char *summary;
	int (*main)(int argc, char **argv);
};

/* Print "berth: TEXT" on stderr; returns err's code as the exit code. */
int verb_fail(const struct error *err);

int verb_hosts(int argc, char **argv);
int verb_plan(int argc, char **argv);
int verb_info(int argc, char **argv);
int verb_check(int argc, char **argv);
int verb_run(int argc, char **argv);
int verb_train(int argc, char **argv);
int verb_submit(int argc, char **argv);
int verb_explain(int argc, char **argv);
int verb_report(int argc, char **argv);
int verb_exec(int argc, char **argv);
int verb_site_test(int argc, char **argv);
int verb_agent(int argc, char **argv);

#endif
