/* SPDX-License-Identifier: BSD-3-Clause */
/* berth: the table of verbs. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/env.h"
#include "base/log.h"
#include "base/spelling.h"
#include "verb.h"
#include "version.h"

#define VERBS_MAX 16

static const struct verb verbs[VERBS_MAX] = {
	{"info", "show what berth found out and decided, and why", verb_info},
	{"plan", "show which GPU, cores and NICs each rank of a node gets", verb_plan},
	{"hosts", "expand a host list or a node file", verb_hosts},
	{"check", "look at every node and the network between them before a job", verb_check},
	{"run", "run a program as a job", verb_run},
	{"train", "train a network on all ranks", verb_train},
	{"submit", "write a job script, and submit it", verb_submit},
	{"explain", "find known failures in a job's output", verb_explain},
	{"report", "show how a job ended as an HTML page", verb_report},
	{"site-test", "try what berth needs on a cluster, in one job", verb_site_test},
	{"exec", "run a program as a rank that another launcher made", verb_exec},
	{"agent", "one node's part of a job; started by launchers", verb_agent},
	{NULL, NULL, NULL},
};

int verb_fail(const struct error *err)
{
	log_user(LOG_ERROR, "%s", err->text);
	return err->code ? err->code : ERR_INTERNAL;
}

static void usage(FILE *stream)
{
	fprintf(stream, "Usage: berth VERB [options]\n\nExamples:\n"
			"    berth run -n 4 -- python train.py\n"
			"    berth check\n"
			"    berth submit --nodes 2 --gpus-per-node 4 --cpus-per-node 32 --time "
			"2:00:00 -- python train.py\n\n");
	for (const struct verb *verb = verbs; verb->name; verb++)
		fprintf(stream, "  %-9s %s\n", verb->name, verb->summary);
	fprintf(stream, "\nberth VERB --help lists a verb's options; see also man berth.\n");
}

/* Descriptors 0 to 2 that are closed would be given to the next file opened, and ranks would
 * inherit it. So open /dev/null there, read-only: a write to it fails and is noticed. */
static void fill_stdio(void)
{
	int fd;

	do
		fd = open("/dev/null", O_RDONLY);
	while (fd >= 0 && fd < 2);
	if (fd > 2)
		close(fd);
}

/* A parent that ignores SIGCHLD hands that on, and the kernel then throws away how children ended.
 */
static void reset_sigchld(void)
{
	struct sigaction action = {.sa_handler = SIG_DFL};

	sigaction(SIGCHLD, &action, NULL);
}

static int flushed(void)
{
	struct error err;

	if (!fflush(stdout) && !ferror(stdout))
		return 0;
	error_set(&err, ERR_IO, "cannot write to standard output: %s", strerror(errno));
	return verb_fail(&err);
}

/* Read BERTH_LOG, NO_COLOR and TERM. */
static int configure_log(void)
{
	struct env *env = env_capture();
	struct error err = {0};
	int rc = env ? log_configure(env_get(env, "BERTH_LOG"), &err)
		     : error_memory(&err, "the environment");

	log_set_colour(env && log_fd_has_colour(STDERR_FILENO, env));
	env_free(env);
	return rc ? verb_fail(&err) : 0;
}

/* berth --version [--modules] [--json]. Without --modules it loads nothing: launchers run it on
 * every node before the agent (docs/decisions/0007-cost-of-a-start.md). */
static int print_version(int count, char **options)
{
	bool modules = false, as_json = false;
	struct error err;

	for (int i = 0; i < count; i++) {
		bool *flag = !strcmp(options[i], "--modules") ? &modules
			     : !strcmp(options[i], "--json")  ? &as_json
							      : NULL;

		if (!flag || *flag) {
			error_set(&err, ERR_USAGE,
				  "--version takes --modules and --json, each once; got '%s'",
				  options[i]);
			return verb_fail(&err);
		}
		*flag = true;
	}
	int rc = version_print(modules, as_json);

	return rc ? rc : flushed();
}

int main(int argc, char **argv)
{
	int rc;

	fill_stdio();
	reset_sigchld();
	if (argc < 2) {
		usage(stderr);
		return ERR_USAGE;
	}
	if (!strcmp(argv[1], "help") && argc > 2) { /* berth help run */
		static char option[] = "--help";

		argv[1] = argv[2];
		argv[2] = option;
	}
	if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h") || !strcmp(argv[1], "help")) {
		usage(stdout);
		return flushed();
	}
	if (!strcmp(argv[1], "--version") || !strcmp(argv[1], "-V"))
		return print_version(argc - 2, argv + 2);
	for (const struct verb *verb = verbs; verb->name; verb++) {
		if (strcmp(verb->name, argv[1]))
			continue;
		char name[64];

		rc = configure_log();
		if (rc)
			return rc;
		snprintf(name, sizeof name, "berth %s", verb->name);
		/* Its messages and --help begin with this name. */
		argv[1] = name;
		rc = verb->main(argc - 1, argv + 1);
		return rc ? rc : flushed();
	}
	const char *names[VERBS_MAX] = {NULL}, *meant;

	for (size_t i = 0; verbs[i].name; i++)
		names[i] = verbs[i].name;
	meant = spelling_closest(argv[1], names, VERBS_MAX);
	log_user(LOG_ERROR, "unknown verb '%s'%s%s%s; berth --help lists the verbs", argv[1],
		 meant ? " (did you mean '" : "", meant ? meant : "", meant ? "'?)" : "");
	return ERR_USAGE;
}
