/* SPDX-License-Identifier: BSD-3-Clause */
/* What a run does and checks before it starts anything. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "alloc/query.h"
#include "alloc/slurm.h"
#include "base/bytes.h"
#include "base/file.h"
#include "base/log.h"
#include "base/number.h"
#include "controller/controller.h"
#include "process/executable.h"
#include "process/logs.h"
#include "run/run.h"

#define LAUNCH_MS 10000	  /* an agent on a real OpenPBS needs 0.2 s, */
#define LAUNCH_NODE_MS 50 /* and each further node less than that */
#define GPUS_MS 2000	  /* for the number of GPUs, if srun needs it */
#define CHUNKS_MS 10000	  /* for the chunks of a PBS job, if roles name them */

/* Choose the first N nodes, or simulate N. */
static int choose_nodes(struct run_setup *setup, struct error *err)
{
	size_t wanted = (size_t)setup->request->nodes;
	struct alloc *alloc = &setup->alloc;
	struct alloc simulated;
	int rc;

	if (setup->launch.launcher->shape == LAUNCH_SIMULATED) {
		rc = launcher_simulate_nodes(alloc, wanted ? wanted : alloc->node_count, &simulated,
					     err);
		if (rc)
			return rc;
		alloc_free(alloc);
		*alloc = simulated;
		return 0;
	}
	if (wanted && wanted != alloc->node_count && alloc->rendezvous)
		return error_set(err, ERR_USAGE,
				 "--nodes %zu conflicts with --nnodes %zu: every machine you "
				 "started takes part",
				 wanted, alloc->node_count);
	if (wanted > alloc->node_count)
		return error_set(err, ERR_USAGE,
				 "--nodes %zu: the allocation has %zu node%s (%s); request more "
				 "from the scheduler, name hosts with --hosts, or simulate nodes "
				 "with --launcher loopback",
				 wanted, alloc->node_count, alloc->node_count == 1 ? "" : "s",
				 alloc->why);
	for (size_t i = wanted; wanted && i < alloc->node_count; i++)
		free(alloc->nodes[i].name);
	if (wanted)
		alloc->node_count = wanted;
	return 0;
}

static void choose_node_timeout(struct run_setup *setup)
{
	struct launch_options *launch = &setup->launch;

	if (launch->node_timeout_ms)
		return;
	launch->node_timeout_ms = NODE_TIMEOUT_MS;
	if (launcher_is_here(launch->launcher))
		launch->node_timeout_ms +=
			NODE_TIMEOUT_SHARED_MS * (int)(setup->alloc.node_count - 1);
}

/* A launcher tool may stand without starting anything, as mpirun through pbs_tmrsh did. */
static void choose_fallback(struct run_setup *setup)
{
	struct launch_options *launch = &setup->launch;

	if (launcher_is_here(launch->launcher) || setup->request->launcher)
		return;
	launch->fallback = launcher_next(launch->launcher, &setup->alloc, setup->env);
	if (!launch->launch_timeout_ms)
		launch->launch_timeout_ms =
			LAUNCH_MS + LAUNCH_NODE_MS * (int)setup->alloc.node_count;
}

/* Can FILE be created? Only the directory matters, because an old file is replaced. */
static int check_report(const char *path, struct error *err)
{
	const char *slash = strrchr(path, '/');
	char *dir = slash ? strndup(path, slash == path ? 1 : (size_t)(slash - path)) : strdup(".");
	struct stat info;
	int rc = 0;

	if (!dir)
		return error_memory(err, "--report");
	if (!*path || (!stat(path, &info) && S_ISDIR(info.st_mode)))
		rc = error_set(err, ERR_OUTPUT,
			       "--report: cannot write '%s': not a file name, or a directory",
			       path);
	else if (access(dir, W_OK | X_OK))
		rc = error_set(err, ERR_OUTPUT, "--report: cannot write '%s': %s: %s", path, dir,
			       strerror(errno));
	else if ((rc = file_check_path(path, err)))
		error_prefix(err, "--report");
	free(dir);
	return rc;
}

/* Nothing waits for the scheduler's answer, except --dry-run, and srun for the number of GPUs. */
static void ask_scheduler(struct run_setup *setup)
{
	const struct run_request *request = setup->request;
	unsigned also = ALLOC_QUERY_KILL_WAIT;
	char past[400];

	if (request->dry_run) {
		alloc_query_now(setup->env, &setup->alloc);
		if (alloc_drop_past_end(&setup->alloc, past, sizeof past))
			log_user(LOG_WARNING, "%s", past);
		return;
	}
	if (request->restarts.max_restarts && setup->alloc.node_count > 1)
		also |= ALLOC_QUERY_SCRIPT;
	alloc_query_begin(&setup->query, setup->env, &setup->alloc, also, ALLOC_QUERY_MS);
}

/* Which nodes the roles' chunks are only qstat knows. */
static int ask_chunks(struct run_setup *setup, struct error *err)
{
	const struct run_request *request = setup->request;
	bool asked = false;

	for (size_t i = 0; i < request->role_count; i++)
		asked |= request->roles[i].group >= 0;
	if (!asked || setup->alloc.source != ALLOC_FROM_PBS)
		return 0;
	if (!setup->request->dry_run)
		alloc_query_wait(&setup->query, CHUNKS_MS, true);
	return setup->alloc.groups
		       ? 0
		       : error_set(err, ERR_UNAVAILABLE,
				   "--chunk: cannot find the nodes of the job's chunks: %s",
				   *setup->query.why ? setup->query.why
						     : "qstat -f does not show exec_host and a "
						       "select that fits it");
}

static int check_wait(const struct run_setup *setup, struct error *err)
{
	const struct launcher *launcher = setup->launch.launcher;
	char scope[256];

	if (setup->request->role_count && launcher->shape == LAUNCH_BY_HAND)
		return error_set(
			err, ERR_USAGE,
			"--role needs agents that berth starts, and you start berth run on "
			"each machine yourself: use --hosts, or a scheduler's job");
	if (!setup->request->job.share.waits)
		return 0;
	if (!controller_scope(&setup->launch, scope, sizeof scope))
		return error_set(err, ERR_USAGE,
				 "--wait has no effect on simulated nodes, which have the same "
				 "GPUs and cores");
	if (launcher->shape == LAUNCH_BY_HAND)
		return error_set(err, ERR_USAGE,
				 "--wait has no effect on machines on which you start berth run "
				 "yourself: use --hosts, or a scheduler's job");
	return 0;
}

/* "+90m", or Unix seconds. */
static int read_end(const char *name, const char *text, int64_t now, int64_t *out,
		    struct error *err)
{
	int64_t ms;

	if (*text != '+' && !number_int64(name, text, 1, INT64_MAX / 2000, out, NULL))
		return 0;
	if (*text != '+' || number_duration_ms(name, text + 1, &ms, NULL))
		return error_set(err, ERR_USAGE,
				 "%s is '%.100s': expected a time from now (+90m, +2h, +1d), or "
				 "Unix seconds, as printed by date -d 'tomorrow 8:00' +%%s",
				 name, text);
	*out = now + ms / 1000;
	return 0;
}

/* Store the job's end time, from the option, the environment or the scheduler, in setup->alloc. */
static int read_end_time(struct run_setup *setup, struct error *err)
{
	struct alloc *alloc = &setup->alloc;
	const char *name = "--end-time", *text = setup->request->end_time;
	int64_t now = (int64_t)time(NULL), end = 0;
	char past[400];
	int rc;

	if (!text) {
		name = "BERTH_END_TIME";
		text = env_get(setup->env, name);
	}
	if (text && *text) {
		rc = read_end(name, text, now, &end, err);
		if (rc) {
			err->code = ERR_USAGE;
			return -ERR_USAGE;
		}
		if (end <= now)
			return error_set(err, ERR_USAGE,
					 "%s %s was %lld s ago by this machine's clock (now: "
					 "%lld); set a future time, or none",
					 name, text, (long long)(now - end), (long long)now);
		alloc->end_time = end;
		alloc->end_given = true;
		free(alloc->end_reason);
		alloc->end_reason = strdup(name);
	} else if (alloc_drop_past_end(alloc, past, sizeof past)) {
		log_user(LOG_WARNING, "%s", past);
	}
	return 0;
}

/* If the user has set BERTH_STOP_FILE and the file exists from an earlier run, remove it and report
 * that, because this run would stop at once. With --dry-run, only report it. */
static int remove_stale_stop_file(const struct run_setup *setup, struct error *err)
{
	const char *path = env_get(setup->env, "BERTH_STOP_FILE");
	bool dry = setup->request->dry_run;
	struct stat info;

	if (!path || !*path || lstat(path, &info))
		return 0;
	if (!dry && unlink(path) && errno != ENOENT)
		return error_set(err, ERR_OUTPUT,
				 "cannot remove the stop file %s of an earlier run: %s", path,
				 strerror(errno));
	if (!setup->request->quiet)
		log_user(LOG_WARNING,
			 "the stop file %s already existed, created %lld s ago: it %s "
			 "removed, because this run would otherwise stop at once; create it again "
			 "to stop the run",
			 path, (long long)(time(NULL) - info.st_mtime), dry ? "will be" : "is");
	return 0;
}

/* Who holds a lock on the file? 0: unknown. */
static int find_holder(const struct stat *file)
{
	FILE *locks = fopen("/proc/locks", "re");
	unsigned long long inode;
	char line[200];
	int pid, found = 0;

	while (locks && !found && fgets(line, sizeof line, locks))
		if (sscanf(line, "%*d: FLOCK %*s %*s %d %*x:%*x:%llu", &pid, &inode) == 2 &&
		    inode == file->st_ino && pid > 0)
			found = pid;
	if (locks)
		fclose(locks);
	return found;
}

static int lock_log_dir(const char *log_dir, struct error *err)
{
	int fd = open(log_dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC), pid;
	struct stat status;
	char by[40] = "";

	/* Not every file system can lock directories. */
	/* With the lock, fd stays open to the end of this process, which releases it. */
	if (fd < 0 || !flock(fd, LOCK_EX | LOCK_NB) || errno != EWOULDBLOCK)
		return 0;
	pid = fstat(fd, &status) ? 0 : find_holder(&status);
	close(fd);
	if (pid)
		snprintf(by, sizeof by, " (process %d)", pid);
	return error_set(err, ERR_OUTPUT,
			 "--log-dir %.200s: another run%s writes there; give each run a directory "
			 "of its own",
			 log_dir, by);
}

static const struct container *container_of_role(const struct run_request *request, size_t i)
{
	return i < request->role_count && request->roles[i].container.image
		       ? &request->roles[i].container
		       : &request->job.container;
}

static bool has_containers(const struct run_request *request)
{
	size_t i = 0;

	while (i < request->role_count && !request->roles[i].container.image)
		i++;
	return request->job.container.image || i < request->role_count;
}

/* That of a container is in its image. */
static int check_programs(const struct run_request *request, const char *const *argv,
			  const struct env *env, struct error *err)
{
	int rc = 0;

	for (size_t i = 0; !rc && (!i || i < request->role_count); i++)
		if (!container_of_role(request, i)->image)
			rc = executable_check(i ? request->roles[i].argv[0] : argv[0], env, err);
	return rc;
}

/* On a login node, images and what is bound may be missing. */
static int check_containers(const struct run_setup *setup, struct error *err)
{
	const struct run_request *request = setup->request;
	int rc = 0;

	for (size_t i = 0; !rc && setup->alloc.this_node >= 0 && (!i || i < request->role_count);
	     i++)
		if (container_of_role(request, i)->image)
			rc = container_check(container_of_role(request, i),
					     setup->cwd ? setup->cwd : "/", err);
	return rc;
}

int run_pull_images(const struct run_setup *setup, struct error *err)
{
	int rc = 0;

	for (size_t i = 0; !rc && (!i || i < setup->request->role_count); i++)
		rc = container_pull(container_of_role(setup->request, i), setup->env, err);
	return rc;
}

int run_prepare(struct run_setup *out, struct error *err)
{
	const struct run_request *request = out->request;
	const char *const *argv = request->program;
	const char *const places[] = {request->job.log_dir, request->report};
	int64_t time_ms;
	int rc = 0;

	out->plan = request->place.plan;
	out->launch = request->launch;
	out->launch.alloc = &out->alloc;
	if (request->report)
		out->report = strdup(request->report);
	out->launch.env = out->env;
	out->launch.berth_path = out->berth_path;
	if (request->job.share.waits && !request->job.share.wait_ms &&
	    !number_duration_ms("", argv[0], &time_ms, NULL))
		rc = error_set(err, ERR_USAGE, "--wait %s: write --wait=%s", argv[0], argv[0]);
	if (!rc)
		rc = check_programs(request, argv, out->env, err);
	/* First in a child, with a time limit: this process would hang in a file system that does
	 * not answer, and react to no signal. */
	for (int i = 0; i < 2 && !rc && !request->dry_run; i++)
		if (places[i] && (rc = run_write_bounded(places[i], NULL, 0, RUN_REPORT_MS, err)))
			out->bad_report = true;
	if (!rc && request->job.log_dir && !request->dry_run)
		rc = logs_check_dir(request->job.log_dir, err);
	/* Not in a directory that was refused. */
	if (!rc && request->job.log_dir && !request->report)
		out->report = text_format("%s/report.json", request->job.log_dir);
	if (!rc && out->report && !request->dry_run)
		out->bad_report = (rc = check_report(out->report, err)) != 0;
	if (!rc)
		rc = file_find_self(out->berth_path, sizeof out->berth_path, err);
	if (!rc)
		rc = alloc_read(out->env, &request->place.alloc, &out->alloc, err);
	/* The ranks' directory. srun refuses to start in one that was removed, but other launchers
	 * would start the ranks in the agents' directory instead. As the user names it ($PWD):
	 * other nodes may have mounted it elsewhere, behind the same link. What containers show is
	 * taken without links. */
	out->cwd = has_containers(request) ? getcwd(NULL, 0) : get_current_dir_name();
	if (!rc && !out->cwd && !run_is_agent(out))
		rc = error_set(err, ERR_INPUT,
			       "cannot find the working directory, in which the ranks would start: "
			       "%m. Change to one that exists (cd).");
	if (!rc)
		rc = read_end_time(out, err);
	if (!rc)
		ask_scheduler(out);
	if (!rc)
		rc = remove_stale_stop_file(out, err);
	if (!rc)
		rc = launcher_find(request->launcher, &out->alloc, out->env, &out->launch.launcher,
				   err);
	if (!rc)
		rc = choose_nodes(out, err);
	if (!rc)
		rc = check_wait(out, err);
	if (!rc)
		rc = check_containers(out, err);
	if (!rc && !request->role_count)
		rc = run_check_kept_options(out, err);
	if (!rc && !request->role_count)
		rc = run_ask_launcher(out, err);
	if (!rc) {
		choose_node_timeout(out);
		choose_fallback(out);
	}
	if (!rc)
		rc = attempts_check(&request->restarts, &out->alloc, err);
	/* Last, because the scheduler's tool has run meanwhile. */
	if (!rc && !request->dry_run && slurm_lacks_gpus(out->env, &out->alloc))
		alloc_query_wait(&out->query, GPUS_MS, true);
	return rc ? rc : ask_chunks(out, err);
}

bool run_has_input(void)
{
	struct stat input, null;

	if (isatty(STDIN_FILENO))
		return tcgetpgrp(STDIN_FILENO) >= 0;
	return !fstat(STDIN_FILENO, &input) &&
	       (stat("/dev/null", &null) || input.st_rdev != null.st_rdev);
}

static int check_pty(const struct run_request *request, struct error *err)
{
	if (request->own_program)
		return error_set(err, ERR_USAGE,
				 "--pty has no effect on berth train, whose ranks read no standard "
				 "input");
	if (!isatty(STDIN_FILENO) || !run_has_input())
		return error_set(err, ERR_USAGE,
				 "--pty needs a terminal as standard input, in this session");
	return 0;
}

int run_prepare_job(struct run_setup *setup, struct error *err)
{
	const struct run_request *request = setup->request;
	const char *log_dir = request->job.log_dir;
	int rc = run_check_rendezvous(setup, err);

	if (!rc)
		rc = run_pull_images(setup, err);
	if (!rc && log_dir) {
		rc = lock_log_dir(log_dir, err);
		setup->bad_report |= rc && !request->report; /* that there is the other run's */
		/* If this run is killed, no report says that it ended well. */
		if (!rc && !request->report)
			unlink(setup->report);
	}
	if (!rc && request->job.pty)
		rc = check_pty(request, err);
	if (!rc && request->requeue)
		rc = requeue_new(&setup->query, request->max_requeues, &setup->requeue, err);
	return rc;
}

const char *const *run_argv(const struct run_setup *setup)
{
	return setup->kept_argv ? setup->kept_argv : setup->request->program;
}

void run_setup_free(struct run_setup *setup)
{
	requeue_free(setup->requeue);
	alloc_query_end(&setup->query);
	alloc_free(&setup->alloc);
	env_free(setup->env);
	free(setup->cwd);
	free(setup->report);
	free(setup->kept_argv);
	json_decref(setup->answer);
	memset(setup, 0, sizeof *setup);
}
