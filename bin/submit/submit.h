/* SPDX-License-Identifier: BSD-3-Clause */
/* Job scripts as values: the options of berth submit, and the script made from them. */
#ifndef BERTH_BIN_SUBMIT_SUBMIT_H
#define BERTH_BIN_SUBMIT_SUBMIT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/env.h"
#include "base/error.h"

enum submit_kind { SUBMIT_UNKNOWN, SUBMIT_SLURM, SUBMIT_PBS };

#define SUBMIT_NONE (-1) /* no GPUs, whatever a site file sets */

/* Zero or NULL: option absent. Strings are borrowed from argv, or owned if they come from a site
 * file. */
struct submit {
	enum submit_kind kind;
	/* gpus_per_node may be SUBMIT_NONE. */
	int nodes, gpus_per_node, cpus_per_node, ranks_per_node;
	int cpus_per_gpu; /* from a site file; counts without cpus_per_node */
	int64_t time_s;
	const char *queue, *account, *name, *output, *after;
	const char *warn_before, *log_dir; /* for berth run, as are requeue and per_node */
	bool per_node, requeue, ray;
	const char *role;  /* --role: the first program's; program has those of the others */
	const char *berth; /* the berth program to call in the job */
	const char *const *program; /* PROGRAM and its arguments, NULL-terminated */
	bool has_options;	    /* program begins with options of berth run: it is from @FILE */
	/* Shell lines before it (module load ...), line_count of them; owned. */
	char **lines;
	size_t line_count;
	char **directives; /* options for sbatch or qsub, directive_count of them; owned */
	size_t directive_count;
	char *owned[8]; /* strings from a file */
	size_t owned_count;
	struct env *settings; /* for the files' settings of runs; borrowed; NULL: check only */
};
void submit_free(struct submit *submit); /* frees what it owns; NULL is allowed */

/* Add the settings of /etc/berth/submit.json and ~/.config/berth/submit.json that submit lacks. The
 * user's file overrides the site's; their lines and directives are concatenated. A missing file is
 * skipped. Return 0, or -ERR_DATA naming file, key and what was expected. */
int submit_read_site_files(const struct env *env, struct submit *submit, struct error *err);

/* This process's environment in *out, which the caller frees in any case: with count texts
 * "NAME=VALUE" set as ENV_FROM_OPTION, and the files' settings of runs as ENV_FROM_SITE, with the
 * file as the reason: the preferred launcher, banned interfaces, the staging path and variables of
 * network libraries. A variable that is set stays. Errors as above. */
int submit_environment(const char *const *texts, size_t count, struct env **out, struct error *err);

/* Make the script: malloced text in *out. Return 0, or -ERR_USAGE naming an option whose value the
 * shell or the scheduler could misinterpret. Pure. */
int submit_script(const struct submit *submit, char **out, struct error *err);

#endif
