/* SPDX-License-Identifier: BSD-3-Clause */
/* Job scripts as values: what berth submit is told, and the script that says it. */
#ifndef BERTH_BIN_SUBMIT_SUBMIT_H
#define BERTH_BIN_SUBMIT_SUBMIT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/env.h"
#include "base/error.h"

enum submit_kind { SUBMIT_UNKNOWN, SUBMIT_SLURM, SUBMIT_PBS };

#define SUBMIT_NONE (-1) /* none, whatever a file says */

/* Zeros and NULLs: not said. Strings are borrowed from argv but where a site's file said them. */
struct submit {
	enum submit_kind kind;
	int nodes, gpus_per_node, cpus_per_node, ranks_per_node; /* GPUs: SUBMIT_NONE too */
	int64_t time_s;
	const char *queue, *account, *name, *output, *after;
	const char *warn_before, *log_dir; /* for berth run, as requeue and per_node */
	bool per_node, requeue;
	const char *berth;	    /* the program to call in the job */
	const char *const *program; /* PROGRAM and its arguments, NULL at the end */
	char **lines; /* of shell before it (module load ...), line_count of them; owned */
	size_t line_count;
	char **directives; /* options for sbatch or qsub, directive_count of them; owned */
	size_t directive_count;
	char *owned[8]; /* strings that a file said */
	size_t owned_count;
};
void submit_free(struct submit *submit); /* what it owns; NULL is fine */

/* What /etc/berth/submit.json and ~/.config/berth/submit.json say, the user's over the site's,
 * where submit does not say it already; their lines and directives one after the other. A file that
 * is not there says nothing. -ERR_DATA names file, key and what was expected. */
int submit_read_site_files(const struct env *env, struct submit *submit, struct error *err);

/* The script: malloced text in *out. -ERR_USAGE: a value that a shell or the scheduler could take
 * for something else, by option. Pure. */
int submit_script(const struct submit *submit, char **out, struct error *err);

#endif
