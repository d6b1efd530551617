/* SPDX-License-Identifier: BSD-3-Clause */
/* berth submit: make a job script for Slurm or PBS, and print or submit it. */
#include <argp.h>
#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "alloc/pbs.h"
#include "arguments.h"
#include "base/number.h"
#include "launch/launcher.h"
#include "submit/submit.h"
#include "verb.h"

#define NODES_MAX 100000
#define TIME_MAX_S (366LL * 86400)
#define SUBMIT_S 60 /* seconds for sbatch or qsub to answer */

enum submit_key {
	SUBMIT_KEY_SLURM = 0x700,
	SUBMIT_KEY_PBS,
	SUBMIT_GPUS,
	SUBMIT_CPUS,
	SUBMIT_RANKS,
	SUBMIT_PER_NODE,
	SUBMIT_TIME,
	SUBMIT_QUEUE,
	SUBMIT_ACCOUNT,
	SUBMIT_NAME,
	SUBMIT_OUTPUT,
	SUBMIT_AFTER,
	SUBMIT_WARN_BEFORE,
	SUBMIT_REQUEUE,
	SUBMIT_LOG_DIR,
	SUBMIT_DRY_RUN,
};

struct arguments {
	struct submit submit;
	bool dry_run;
};

static const struct argp_option table[] = {
	{"slurm", SUBMIT_KEY_SLURM, NULL, 0, "For Slurm (default: whose tool is there)", 1},
	{"pbs", SUBMIT_KEY_PBS, NULL, 0, "For PBS", 1},
	{"nodes", 'N', "N", 0, "Nodes (default 1)", 1},
	{"gpus-per-node", SUBMIT_GPUS, "K", 0,
	 "GPUs on each node; 0: none, whatever submit.json says", 1},
	{"cpus-per-node", SUBMIT_CPUS, "K", 0, "Cores on each node", 1},
	{"ranks-per-node", SUBMIT_RANKS, "K", 0, "Ranks on each node (default: one a GPU)", 1},
	{"per-node", SUBMIT_PER_NODE, NULL, 0, "One process a node, as with berth run (torchrun)",
	 1},
	{"time", SUBMIT_TIME, "TIME", 0, "How long: 2:00:00, 90m, 2h, 1d", 1},
	{"queue", SUBMIT_QUEUE, "NAME", 0, "Queue of PBS, partition of Slurm", 1},
	{"account", SUBMIT_ACCOUNT, "NAME", 0, "Whom the time is charged to", 1},
	{"name", SUBMIT_NAME, "NAME", 0, "The job's name (default berth)", 1},
	{"output", SUBMIT_OUTPUT, "FILE", 0, "Where the job's output goes", 1},
	{"after", SUBMIT_AFTER, "JOB", 0, "Start when that job has ended well", 1},
	{"warn-before", SUBMIT_WARN_BEFORE, "TIME", 0,
	 "As with berth run: that long before the end BERTH_STOP_FILE appears", 1},
	{"requeue", SUBMIT_REQUEUE, NULL, 0,
	 "As with berth run: queue the job again when it was stopped with its work saved", 1},
	{"log-dir", SUBMIT_LOG_DIR, "DIR", 0, "As with berth run: a file a rank", 1},
	{"dry-run", SUBMIT_DRY_RUN, NULL, 0, "Show the script, and submit nothing", 1},
	{NULL, 0, NULL, 0, NULL, 0},
};

static void set_kind(const struct argp_state *state, struct submit *submit, enum submit_kind kind)
{
	struct error err;

	if (submit->kind != SUBMIT_UNKNOWN && submit->kind != kind) {
		error_set(&err, ERR_USAGE, "both --slurm and --pbs are given; give one");
		arguments_refuse(state, &err);
	}
	submit->kind = kind;
}

/* Require H:MM:SS, or a number with a unit: 2:00 alone may mean hours or minutes. */
static void read_time(const struct argp_state *state, const char *text, int64_t *out)
{
	const char *colon = strchr(text, ':');
	struct error err = {0};
	int64_t value = 0;
	int rc;

	if (colon && strchr(colon + 1, ':')) {
		rc = pbs_duration("--time", text, &value, &err);
	} else if (colon || strspn(text, "0123456789") == strlen(text)) {
		rc = error_set(&err, ERR_USAGE,
			       "--time %.60s: hours, minutes or seconds? Expected "
			       "H:MM:SS, or a unit: 90m, 2h, 1d",
			       text);
	} else {
		rc = number_duration_ms("--time", text, &value, &err);
		value = (value + 999) / 1000;
	}
	if (!rc && (value < 1 || value > TIME_MAX_S))
		rc = error_set(&err, ERR_USAGE, "--time %.60s: expected 1 s to 366 days", text);
	if (rc) {
		err.code = ERR_USAGE;
		arguments_refuse(state, &err);
	}
	*out = value;
}

static error_t parse_rest(int key, char *text, struct argp_state *state,
			  struct arguments *arguments)
{
	struct submit *submit = &arguments->submit;
	struct error err = {0};
	int64_t ms;

	switch (key) {
	case SUBMIT_QUEUE:
		submit->queue = text;
		return 0;
	case SUBMIT_ACCOUNT:
		submit->account = text;
		return 0;
	case SUBMIT_NAME:
		submit->name = text;
		return 0;
	case SUBMIT_OUTPUT:
		submit->output = text;
		return 0;
	case SUBMIT_AFTER:
		submit->after = text;
		return 0;
	case SUBMIT_WARN_BEFORE:
		if (number_duration_ms("--warn-before", text, &ms, &err) || ms < 1000 ||
		    ms > 86400000) {
			error_set(&err, ERR_USAGE,
				  "--warn-before %.100s: expected a time from 1s to 1d, "
				  "such as 5m",
				  text);
			arguments_refuse(state, &err);
		}
		submit->warn_before = text;
		return 0;
	case SUBMIT_REQUEUE:
		submit->requeue = true;
		return 0;
	case SUBMIT_LOG_DIR:
		submit->log_dir = text;
		return 0;
	case SUBMIT_DRY_RUN:
		arguments->dry_run = true;
		return 0;
	case ARGP_KEY_ARG:
		submit->program = (const char *const *)&state->argv[state->next - 1];
		state->next = state->argc;
		return 0;
	case ARGP_KEY_END:
		if (!submit->program) {
			error_set(&err, ERR_USAGE, "which PROGRAM is to be run?");
			arguments_refuse(state, &err);
		}
		return 0;
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

static error_t parse(int key, char *text, struct argp_state *state)
{
	struct arguments *arguments = state->input;
	struct submit *submit = &arguments->submit;

	switch (key) {
	case SUBMIT_KEY_SLURM:
		set_kind(state, submit, SUBMIT_SLURM);
		return 0;
	case SUBMIT_KEY_PBS:
		set_kind(state, submit, SUBMIT_PBS);
		return 0;
	case 'N':
		arguments_number(state, "--nodes", text, NODES_MAX, &submit->nodes);
		return 0;
	case SUBMIT_GPUS:
		if (strcmp(text, "0"))
			arguments_number(state, "--gpus-per-node", text, 1024,
					 &submit->gpus_per_node);
		else
			submit->gpus_per_node = SUBMIT_NONE;
		return 0;
	case SUBMIT_CPUS:
		arguments_number(state, "--cpus-per-node", text, 100000, &submit->cpus_per_node);
		return 0;
	case SUBMIT_RANKS:
		arguments_number(state, "--ranks-per-node", text, 100000, &submit->ranks_per_node);
		return 0;
	case SUBMIT_PER_NODE:
		submit->per_node = true;
		return 0;
	case SUBMIT_TIME:
		read_time(state, text, &submit->time_s);
		return 0;
	default:
		return parse_rest(key, text, state, arguments);
	}
}

/* Slurm installs its own qsub wrapper next to sbatch: sbatch wins. */
static int choose_kind(const struct env *env, struct submit *submit, struct error *err)
{
	char path[PATH_MAX];

	if (submit->kind != SUBMIT_UNKNOWN)
		return 0;
	if (env_find_tool(env, "sbatch", path, sizeof path))
		submit->kind = SUBMIT_SLURM;
	else if (!pbs_find_tool(env, "qsub", path, sizeof path))
		submit->kind = SUBMIT_PBS;
	else
		return error_set(
			err, ERR_UNAVAILABLE,
			"there is neither sbatch nor qsub here: for which one is the script? "
			"Give --slurm or --pbs, with --dry-run");
	return 0;
}

/* Wait for the tool's end, at most SUBMIT_S. -1: it was late and was killed. */
static int wait_for(pid_t pid)
{
	int status;

	for (int i = 0; i < SUBMIT_S * 100; i++) {
		if (waitpid(pid, &status, WNOHANG) == pid)
			return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
		usleep(10000);
	}
	kill(-pid, SIGKILL);
	waitpid(pid, &status, 0);
	return -1;
}

static int submit_job(const struct env *env, const struct submit *submit, const char *script,
		      struct error *err)
{
	char path[PATH_MAX] = "sbatch", reply[2048];
	char *argv[] = {path, NULL};
	struct launcher_process child;
	ssize_t n;
	int code, rc;

	if (submit->kind == SUBMIT_PBS && pbs_find_tool(env, "qsub", path, sizeof path))
		return error_set(err, ERR_UNAVAILABLE,
				 "there is no qsub, in PATH or in PBS_EXEC of /etc/pbs.conf");
	rc = launcher_spawn(argv, env, script, &child, err);
	if (rc)
		return rc;
	code = wait_for(child.pid);
	n = pread(child.output_fd, reply, sizeof reply - 1, 0);
	close(child.output_fd);
	reply[n > 0 ? n : 0] = '\0';
	for (size_t size = strlen(reply); size && reply[size - 1] == '\n';)
		reply[--size] = '\0';
	if (code < 0)
		return error_set(err, ERR_UNAVAILABLE,
				 "%s gave no answer within %d s; whether the job is "
				 "there its queue tells",
				 path, SUBMIT_S);
	if (code)
		return error_set(err, ERR_UNAVAILABLE, "%s refused it (code %d): %.900s", path,
				 code, reply);
	printf("%s\n", reply);
	return 0;
}

static int run(struct arguments *arguments, const struct env *env, struct error *err)
{
	struct submit *submit = &arguments->submit;
	char self[PATH_MAX] = "", *script = NULL;
	int rc = submit_read_site_files(env, submit, err);

	if (!rc && !submit->berth) {
		if (readlink("/proc/self/exe", self, sizeof self - 1) <= 0)
			strcpy(self, "berth");
		submit->berth = self;
	}
	if (!submit->nodes)
		submit->nodes = 1;
	if (!rc)
		rc = choose_kind(env, submit, err);
	if (!rc)
		rc = submit_script(submit, &script, err);
	if (!rc && arguments->dry_run)
		fputs(script, stdout);
	else if (!rc)
		rc = submit_job(env, submit, script, err);
	if (!rc && fflush(stdout))
		rc = error_set(err, ERR_IO, "standard output: %s", strerror(errno));
	free(script);
	return rc;
}

int verb_submit(int argc, char **argv)
{
	static const struct argp argp = {
		.options = table,
		.parser = parse,
		.args_doc = "[--] PROGRAM [ARGUMENTS]",
		.doc = "Write a job script for Slurm or PBS that runs PROGRAM by berth run, and "
		       "submit "
		       "it.\v"
		       "What a site always wants stands in /etc/berth/submit.json and "
		       "~/.config/berth/submit.json; see man berth-submit. Example: berth submit "
		       "--nodes 2 --gpus-per-node 4 --time 2:00:00 -- python train.py",
	};
	struct arguments arguments = {0};
	struct error err = {0};
	struct env *env;
	int rc;

	arguments_parse(&argp, argc, argv, ARGP_IN_ORDER, &arguments);
	env = env_capture();
	rc = env ? run(&arguments, env, &err) : error_memory(&err, "the environment");
	submit_free(&arguments.submit);
	env_free(env);
	return rc ? verb_fail(&err) : 0;
}
