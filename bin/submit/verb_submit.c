/* SPDX-License-Identifier: BSD-3-Clause */
/* berth submit: make a job script for Slurm or PBS, and print or submit it. */
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "alloc/pbs.h"
#include "arguments.h"
#include "base/file.h"
#include "base/log.h"
#include "base/number.h"
#include "launch/launcher.h"
#include "roles/role_options.h"
#include "submit/submit.h"
#include "verb.h"
#include "words_file.h"

#define NODES_MAX 100000
#define TIME_MAX_S (366LL * 86400)
#define SUBMIT_S 60 /* seconds for sbatch or qsub to answer */

struct arguments {
	struct submit submit;
	char **program; /* PROGRAM and its arguments */
	bool dry_run;
};

static int set_kind(struct submit *submit, enum submit_kind kind, struct error *err)
{
	if (submit->kind != SUBMIT_UNKNOWN && submit->kind != kind)
		return error_set(err, ERR_USAGE, "--slurm and --pbs exclude each other; give one");
	submit->kind = kind;
	return 0;
}

static int set_slurm(const char *text, void *out, struct error *err)
{
	return set_kind(out, SUBMIT_SLURM, err);
}

static int set_pbs(const char *text, void *out, struct error *err)
{
	return set_kind(out, SUBMIT_PBS, err);
}

static int read_gpus(const char *text, void *out, struct error *err)
{
	*(int *)out = SUBMIT_NONE;
	return strcmp(text, "0") ? number_int("--gpus-per-node", text, 1, 1024, out, err) : 0;
}

#define TIME_FORMS "2:00:00, 1-12:00:00, 90m, 2h, 1d"

/* What sbatch and qsub accept with a colon (M:SS means the same to both) or Slurm's days (D-H,
 * D-H:MM, D-H:MM:SS), or a number with a unit. */
static int read_time(const char *text, void *out, struct error *err)
{
	const char *dash = strchr(text, '-');
	bool bare = *text && strspn(text, "0123456789") == strlen(text);
	int64_t value = 0;
	int rc;

	if (dash && dash > text && strspn(text, "0123456789") == (size_t)(dash - text)) {
		const char *minutes = strchr(dash, ':');
		int64_t days = 0;
		char number[12], time[80];

		snprintf(number, sizeof number, "%.*s", (int)(dash - text), text);
		snprintf(time, sizeof time, "%.60s%s", dash + 1,
			 !minutes		    ? ":00:00"
			 : strchr(minutes + 1, ':') ? ""
						    : ":00");
		rc = number_int64("--time", number, 0, 366, &days, NULL);
		if (!rc)
			rc = pbs_duration("--time", time, &value, NULL);
		value += days * 86400;
	} else if (strchr(text, ':')) {
		rc = pbs_duration("--time", text, &value, NULL);
	} else {
		rc = number_duration_ms("--time", text, &value, NULL);
		value = (value + 999) / 1000;
	}
	if (rc || bare || value < 1 || value > TIME_MAX_S)
		return error_set(
			err, ERR_USAGE,
			"--time '%.60s': %sexpected a time from 1s to 366d, such as " TIME_FORMS,
			text, bare ? "minutes to Slurm, seconds to PBS; " : "");
	*(int64_t *)out = value;
	return 0;
}

static int read_warn_before(const char *text, void *out, struct error *err)
{
	int ms;

	if (arguments_time("--warn-before", text, &ms, NULL))
		return error_set(err, ERR_USAGE,
				 "--warn-before %.100s: expected a time from 1s to 1d, such as 5m",
				 text);
	*(const char **)out = text;
	return 0;
}

#define SUBMIT(member) offsetof(struct arguments, submit.member)

static const struct arguments_option options[] = {
	{"slurm", NULL, "Write a script for Slurm (default: if sbatch is present)", ARGUMENTS_READ,
	 .read = set_slurm},
	{"pbs", NULL, "Write a script for PBS (default: if qsub is present and sbatch is not)",
	 ARGUMENTS_READ, .read = set_pbs},
	{"nodes", "N", "Request N nodes (default: 1)", ARGUMENTS_INT, SUBMIT(nodes), 1, NODES_MAX,
	 .letter = 'N'},
	{"gpus-per-node", "K", "Request K GPUs per node; 0 overrides gpus_per_node in submit.json",
	 ARGUMENTS_READ, SUBMIT(gpus_per_node), .read = read_gpus},
	{"cpus-per-node", "K", "Request K cores per node (default: the scheduler's, often one)",
	 ARGUMENTS_INT, SUBMIT(cpus_per_node), 1, 100000},
	{"ranks-per-node", "K", "Start K ranks on each node (default: one per GPU)", ARGUMENTS_INT,
	 SUBMIT(ranks_per_node), 1, 100000},
	{"per-node", NULL, "Start one process per node, as with berth run, for torchrun",
	 ARGUMENTS_FLAG, SUBMIT(per_node)},
	{"time", "TIME", "Set the time limit: " TIME_FORMS, ARGUMENTS_READ, SUBMIT(time_s),
	 .read = read_time},
	{"queue", "NAME", "Use this queue (PBS) or partition (Slurm)", ARGUMENTS_TEXT,
	 SUBMIT(queue)},
	{"account", "NAME", "Charge the time to this account", ARGUMENTS_TEXT, SUBMIT(account)},
	{"name", "NAME", "Name the job (default: berth)", ARGUMENTS_TEXT, SUBMIT(name)},
	{"output", "FILE", "Write the job's output to FILE (default: the scheduler's)",
	 ARGUMENTS_TEXT, SUBMIT(output)},
	{"after", "JOB", "Start after that job has ended with success", ARGUMENTS_TEXT,
	 SUBMIT(after)},
	{"warn-before", "TIME",
	 "As with berth run: create BERTH_STOP_FILE TIME before the time limit", ARGUMENTS_READ,
	 SUBMIT(warn_before), .read = read_warn_before},
	{"requeue", NULL, "As with berth run: requeue the job if it stopped with its work saved",
	 ARGUMENTS_FLAG, SUBMIT(requeue)},
	{"log-dir", "DIR", "As with berth run: write each rank's output also to its own file",
	 ARGUMENTS_TEXT, SUBMIT(log_dir)},
	{"ray", NULL, "As with berth run: PROGRAM is a driver of Ray", ARGUMENTS_FLAG, SUBMIT(ray)},
	{"dry-run", NULL, "Show the script, and submit nothing", ARGUMENTS_FLAG,
	 offsetof(struct arguments, dry_run)},
	{0},
};

static const struct arguments_option role_table[] = {
	{"role", "NAME",
	 "As with berth run: start several programs, --role NAME [OPTIONS] -- PROGRAM : --role ...",
	 ARGUMENTS_REST, offsetof(struct arguments, program)},
	{0},
};

static int given_role(void *filled, const char *name, const char *text, struct error *err)
{
	struct arguments *arguments = filled;

	arguments->submit.role = text;
	return 0;
}

/* Wrong options of roles show now, and not when the job starts. */
static int check_roles(const struct arguments *arguments, struct error *err)
{
	struct role_options roles = {.first = arguments->submit.role};
	int rc = roles.first && arguments->submit.ray
			 ? error_set(err, ERR_USAGE,
				     "--ray conflicts with --role: it has roles of its own")
		 : roles.first ? role_options_read(&roles, arguments->program, err)
			       : 0;

	role_options_free(&roles);
	return rc;
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
		return error_set(err, ERR_UNAVAILABLE,
				 "found neither sbatch nor qsub; choose the script's scheduler "
				 "with --slurm or --pbs, and add --dry-run");
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
		return error_set(
			err, ERR_UNAVAILABLE,
			"qsub not found, neither in PATH nor in PBS_EXEC of /etc/pbs.conf");
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
				 "%s did not answer within %d s; check the queue to see whether it "
				 "accepted the job",
				 path, SUBMIT_S);
	if (code)
		return error_set(err, ERR_UNAVAILABLE, "%s rejected the job (exit code %d): %.900s",
				 path, code, reply);
	printf("%s\n", reply);
	return 0;
}

/* Most schedulers grant one core to a job that requests GPUs only. */
static void request_cores(struct submit *submit)
{
	if (submit->cpus_per_node || submit->gpus_per_node <= 0)
		return;
	submit->cpus_per_node = submit->gpus_per_node * submit->cpus_per_gpu;
	for (size_t i = 0; i < submit->directive_count; i++)
		if (strstr(submit->directives[i], "cpu") || strstr(submit->directives[i], "excl"))
			return;
	if (!submit->cpus_per_node)
		log_user(LOG_NOTE, "requesting no cores: the scheduler may grant only one per "
				   "node. Add --cpus-per-node, or cpus_per_gpu to submit.json");
}

static int run(struct arguments *arguments, const struct env *env, struct error *err)
{
	struct submit *submit = &arguments->submit;
	static struct words_file file; /* what the script is made of */
	char self[PATH_MAX] = "", *script = NULL;
	int rc = submit_read_site_files(env, submit, err);

	if (!rc && !submit->berth) {
		if (file_find_self(self, sizeof self, NULL))
			strcpy(self, "berth");
		submit->berth = self;
	}
	submit->program = (const char *const *)arguments->program;
	if (!rc && !submit->role && **submit->program == '@') {
		rc = words_file_read(*arguments->program, arguments->program, &file, err);
		submit->program = (const char *const *)file.words + !rc;
		submit->has_options = true;
		if (!rc && !*submit->program)
			rc = error_set(err, ERR_USAGE, "%s is empty: no PROGRAM given", file.path);
	}
	if (!submit->nodes)
		submit->nodes = 1;
	if (!rc)
		rc = check_roles(arguments, err);
	if (!rc)
		rc = choose_kind(env, submit, err);
	if (!rc)
		request_cores(submit);
	if (!rc)
		rc = submit_script(submit, &script, err);
	if (!rc && arguments->dry_run)
		fputs(script, stdout);
	else if (!rc)
		rc = submit_job(env, submit, script, err);
	free(script);
	return rc;
}

int verb_submit(int argc, char **argv)
{
	static const struct arguments_command command = {
		.tables = {{options}, {role_table, 0, given_role}},
		.positional = {.type = ARGUMENTS_REST,
			       .offset = offsetof(struct arguments, program)},
		.usage = "[--] PROGRAM [ARGUMENTS]",
		.doc = "Write a job script for Slurm or PBS that runs PROGRAM with berth run, and "
		       "submit it.\vDefaults of the site and of the user are in "
		       "/etc/berth/submit.json and ~/.config/berth/submit.json; see man "
		       "berth-submit. Example: berth submit --nodes 2 --gpus-per-node 4 "
		       "--cpus-per-node 32 --time 2:00:00 -- python train.py",
	};
	struct arguments arguments = {0};
	struct error err = {0};
	struct env *env;
	int rc;

	arguments_parse(&command, argc, argv, &arguments);
	env = env_capture();
	rc = env ? run(&arguments, env, &err) : error_memory(&err, "the environment");
	submit_free(&arguments.submit);
	env_free(env);
	return rc ? verb_fail(&err) : 0;
}
