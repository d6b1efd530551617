/* SPDX-License-Identifier: BSD-3-Clause */
/* A start has two steps, because the PMIx server may start slowly: agent_ranks_start prepares
 * everything and asks for the server, agent_ranks_resume_start forks the ranks in a later round. */
#include "agent/ranks.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/files.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/log.h"
#include "hostlist/idset.h"
#include "process/guardian.h"
#include "process/logs.h"
#include "process/placeholders.h"
#include "process/supervise.h"

#define OUTPUT_BATCH (32u << 10) /* send a message once this many bytes of output are collected */

/* ---- environment ---- */

/* "+NAME=VALUE" or "-NAME". */
static int apply_change(struct env *env, const char *change, struct error *err)
{
	char *copy = strdup(change + (*change ? 1 : 0)), *value;
	int rc;

	if (!copy)
		return error_memory(err, "the environment");
	value = strchr(copy, '=');
	if (value)
		*value++ = 0;
	if (*change == '+' && value)
		rc = env_set(env, copy, value, ENV_FROM_BERTH, NULL, err);
	else if (*change == '-' && !value)
		rc = (env_drop(env, copy), 0);
	else
		rc = error_set(err, ERR_DATA, "START: '%.60s' is not an environment change",
			       change);
	free(copy);
	return rc;
}

/* The rank's command line and environment become those of its container's runtime. */
static int enter_container(struct agent_ranks *ranks, size_t local_rank, struct env *env,
			   const char *const *program, char ***argv, struct error *err)
{
	const struct agent_job *job = &ranks->job;
	struct container_start start = {
		.dir = ranks->dir, .cwd = job->cwd[0], .env = env, .argv = program};
	char name[200], *cwd = job->cwd[0] ? NULL : getcwd(NULL, 0), **removal;
	int rc = container_removal(&job->container, &removal, err);

	if (!start.cwd)
		start.cwd = cwd ? cwd : "/";
	/* Unlike the job's id, the directory's name is this agent's alone. */
	snprintf(name, sizeof name, "%s-%d", strrchr(ranks->dir, '/') + 1,
		 agent_job_rank(job, local_rank));
	start.name = name;
	if (!rc && removal && !ranks->removes)
		rc = guardian_at_end(ranks->at_end_fd, (const char *const *)removal, err);
	if (!rc && removal)
		rc = guardian_at_end(ranks->at_end_fd, (const char *[]){name, NULL}, err);
	ranks->removes |= removal != NULL;
	if (!rc && !(*argv = container_command(&job->container, &start)))
		rc = error_memory(err, "the container's command line");
	free(removal);
	free(cwd);
	return rc ? rc : container_environment(&job->container, env, err);
}

/* Return the environment of one rank in the form that execve takes, and its command line if it is
 * in a container or a role (otherwise NULL); both are malloced. */
static int rank_environment(struct agent_ranks *ranks, const struct env *base, size_t local_rank,
			    const char *const *changes, size_t count, char ***out, char ***argv,
			    struct error *err)
{
	struct env *env = env_copy(base);
	int rc = env ? 0 : error_memory(err, "the environment");
	char secret[65];

	/* What comes later overrides: the job's environment, the plan's changes, PMIx's variables.
	 */
	secret_for_ranks(&ranks->uplink->params->secret, ranks->job.id, SECRET_FOR_STORE, secret);
	if (!rc)
		rc = env_set(env, "BERTH_STORE_SECRET", secret, ENV_FROM_BERTH, NULL, err);
	explicit_bzero(secret, sizeof secret);
	for (size_t i = 0; !rc && i < count; i++)
		rc = apply_change(env, changes[i], err);
	if (!rc)
		rc = agent_pmix_environment(ranks->pmix, (int)local_rank, env, err);
	if (!rc && ranks->job.placeholders) {
		*argv = placeholders_fill(ranks->job.argv, env);
		rc = *argv ? 0 : error_memory(err, "the program's arguments");
	}
	if (!rc && ranks->job.container.image) {
		char **program = *argv;

		*argv = NULL;
		rc = enter_container(ranks, local_rank, env,
				     program ? (const char *const *)program : ranks->job.argv, argv,
				     err);
		free(program);
	}
	if (!rc && !(*out = env_to_envp(env)))
		rc = error_memory(err, "the environment");
	env_free(env);
	return rc;
}

/* ---- events of supervise ---- */

static void send_output(struct agent_ranks *ranks)
{
	if (!ranks->output.size)
		return;
	agent_uplink_send(ranks->uplink, MESSAGE_OUTPUT, 0, NULL, ranks->output.data,
			  ranks->output.size);
	bytes_drop(&ranks->output, ranks->output.size);
}

static void on_line(void *context, int local_rank, enum supervise_stream stream, const char *text,
		    size_t size, bool newline)
{
	struct agent_ranks *ranks = context;
	struct message_output output = {(uint32_t)agent_job_rank(&ranks->job, (size_t)local_rank),
					(int)stream, newline, text, size};

	if (ranks->logs)
		logs_line(ranks->logs, (size_t)local_rank, (int)stream, text, size, newline);
	message_add_output(&ranks->output, &output);
	if (ranks->output.size > OUTPUT_BATCH)
		send_output(ranks);
}

static void on_started(void *context, int local_rank, pid_t pid)
{
	struct agent_ranks *ranks = context;

	log_info(LOG_AGENT, "rank %d runs as process %d",
		 agent_job_rank(&ranks->job, (size_t)local_rank), (int)pid);
	agent_heartbeats_started(ranks->heartbeats, local_rank, pid);
	if (++ranks->started_count < agent_job_rank_count(&ranks->job) || ranks->started_sent)
		return;
	ranks->started_sent = true;
	agent_heartbeats_watch_joined(ranks->heartbeats);
	agent_uplink_report(ranks->uplink, MESSAGE_STARTED, NULL);
}

void agent_ranks_settle(struct agent_ranks *ranks)
{
	if (ranks->supervise)
		supervise_check_all(ranks->supervise);
	agent_uplink_report(ranks->uplink, MESSAGE_SETTLED, NULL);
}

static json_t *output_tail(struct agent_ranks *ranks, int local_rank)
{
	json_t *list = json_array();
	const char *const *lines = NULL;
	size_t count = ranks->logs ? logs_tail(ranks->logs, (size_t)local_rank, &lines) : 0;

	for (size_t i = 0; i < count; i++)
		json_array_append_new(list, json_text(lines[i]));
	return list;
}

static void on_ended(void *context, const struct supervise_end *end)
{
	struct agent_ranks *ranks = context;
	bool bad = end->code != 0 && !end->stopped_by_us;

	log_info(LOG_AGENT, "rank %d (process %d) ended with code %d, signal %d%s%s%s", end->rank,
		 (int)end->pid, end->code, end->signal,
		 end->stopped_by_us ? ", stopped by berth" : "", end->start_error ? ": " : "",
		 end->start_error ? end->start_error : "");
	send_output(ranks); /* the controller must receive the last lines before ENDED */
	if (ranks->heartbeats)
		agent_heartbeats_poll(ranks->heartbeats);
	if (ranks->heartbeats && supervise_running(ranks->supervise) == 0)
		agent_heartbeats_ended(ranks->heartbeats);
	agent_uplink_report(
		ranks->uplink, MESSAGE_ENDED,
		&(struct message_ended){
			.rank = end->rank,
			.code = end->code,
			.signal = end->signal,
			.core = end->core_dumped,
			.stopped = end->stopped_by_us,
			.oom = end->oom,
			.peak_memory_bytes = end->peak_memory_bytes,
			.start_error = end->start_error,
			.last = bad ? output_tail(ranks, end->local_rank) : json_array(),
			.said = agent_report_read(ranks->dir),
			.traceback = agent_traceback_read(ranks->dir, end->local_rank),
		});
	agent_pmix_rank_ended(ranks->pmix, end->local_rank);
	/* The server's process is a child of this process, too. End it before supervise looks
	 * for processes that the ranks left behind. */
	if (supervise_running(ranks->supervise) == 0)
		agent_pmix_stop(ranks->pmix);
	/* All ranks have exited; kill the processes that they left behind. */
	if (supervise_running(ranks->supervise) == 0 && !ranks->pmix->stopping)
		agent_ranks_stop(ranks, SUPERVISE_GRACE_MS);
}

static void on_finished(void *context, const char *left)
{
	struct agent_ranks *ranks = context;

	send_output(ranks);
	ranks->finished_ms = clock_now_ms();
	ranks->left = left ? strdup(left) : NULL;
	if (ranks->logs)
		logs_flush(ranks->logs);
}

/* DONE may end this process, so write the log files first, unless they stall. */
static void send_done(struct agent_ranks *ranks)
{
	const char *lost = NULL;

	if (ranks->logs && !logs_settled(ranks->logs, clock_now_ms() - ranks->finished_ms, &lost))
		return;
	if (lost)
		agent_uplink_note(ranks->uplink, "%s", lost);
	ranks->done_sent = true;
	agent_uplink_report(ranks->uplink, MESSAGE_DONE, &(struct message_done){ranks->left});
}

static void on_note(void *context, const char *text)
{
	struct agent_ranks *ranks = context;

	agent_uplink_note(ranks->uplink, "%s", text);
}

/* agent_ranks_flush continues. */
static void on_logs_ready(struct loop_source *source, uint32_t events)
{
	(void)source;
	(void)events;
}

/* ---- start and stop ---- */

static int open_logs(struct agent_ranks *ranks, struct error *err)
{
	const struct agent_job *job = &ranks->job;
	size_t count = agent_job_rank_count(job);
	int *numbers = calloc(count, sizeof *numbers), rc;

	if (!numbers)
		return error_memory(err, "the ranks' output");
	for (size_t i = 0; i < count; i++)
		numbers[i] = agent_job_rank(job, i);
	struct logs_options options = {
		.dir = job->log_dir,
		.job_id = job->id,
		.host = job->host,
		.attempt = (int)job->attempt,
		.rank_count = count,
		.ranks = numbers,
	};

	rc = logs_open(&options, &ranks->logs, err);
	free(numbers);
	if (!rc && logs_fd(ranks->logs) >= 0)
		rc = loop_add(ranks->loop, &ranks->logs_source, logs_fd(ranks->logs), EPOLLIN, err);
	return rc;
}

static int start_supervise(struct agent_ranks *ranks, struct error *err)
{
	struct supervise_options options = {
		.this_system = ranks->this_system,
		.exempt_pid = server_process_pid(ranks->pmix->process),
		.spared = container_processes(&ranks->job.container),
		.prompt = ranks->job.input == AGENT_JOB_STDIN_TERMINAL ||
			  ranks->job.input == AGENT_JOB_STDIN_PTY,
	};
	struct supervise_events events = {.context = ranks,
					  .started = on_started,
					  .line = on_line,
					  .ended = on_ended,
					  .finished = on_finished,
					  .note = on_note};

	return supervise_new(ranks->loop, &options, &events, &ranks->supervise, err);
}

/* Return the descriptor that becomes a rank's standard input; -1: none. */
static int rank_stdin(const struct agent_ranks *ranks, size_t local_rank)
{
	bool first = agent_job_rank(&ranks->job, local_rank) == 0;

	if (ranks->job.input == AGENT_JOB_STDIN_INHERIT && first)
		return STDIN_FILENO;
	return ranks->inputs && (first || ranks->job.input == AGENT_JOB_STDIN_ALL)
		       ? agent_stdin_rank_fd(ranks->inputs, local_rank)
		       : -1;
}

/* Read one rank's part of START. */
static int fill_rank(struct agent_ranks *ranks, const json_t *entry, size_t local_rank,
		     const struct env *base, const unsigned char **at, size_t *left,
		     struct supervise_rank *out, struct error *err)
{
	const char *cpus = json_string_value(json_object_get(entry, "cpus"));
	const char **changes = NULL;
	struct idset *set = NULL;
	char **envp = NULL, **argv = NULL;
	size_t count;
	int rc = bytes_next_strings(at, left, &changes, &count, err);

	if (!rc)
		rc = idset_parse(cpus ? cpus : "", &set, err);
	if (!rc)
		rc = rank_environment(ranks, base, local_rank, changes, count, &envp, &argv, err);
	free(changes);
	*out = (struct supervise_rank){
		.rank = agent_job_rank(&ranks->job, local_rank),
		.argv = argv ? (const char *const *)argv : ranks->job.argv,
		.envp = envp,
		.cwd = ranks->job.cwd[0],
		.cpus_os = set,
		.stdin_fd = rank_stdin(ranks, local_rank),
		.pty_fd = local_rank ? 0 : agent_stdin_pty_fd(ranks->inputs),
		.limits = &ranks->job.limits,
		.service = ranks->job.service,
	};
	return rc;
}

/* The ranks inherit the umask; supervise sets their limits. */
static void set_limits(struct agent_ranks *ranks)
{
	char lacking[500];

	if (!ranks->job.limits.known)
		return;
	umask(ranks->job.limits.umask);
	limits_lacking(&ranks->job.limits, lacking, sizeof lacking);
	if (lacking[0])
		agent_uplink_note(ranks->uplink,
				  "its hard limits are below the soft limits of berth run (%s)",
				  lacking);
}

static int start_ranks(struct agent_ranks *ranks, const json_t *list, const unsigned char *at,
		       size_t left, struct error *err)
{
	enum agent_job_stdin input = ranks->job.input;
	size_t count = agent_job_rank_count(&ranks->job);
	struct supervise_rank *starts = calloc(count, sizeof *starts);
	struct env *base = NULL;
	int rc = starts ? agent_job_environment(&ranks->job, &base, err)
			: error_memory(err, "ranks");

	set_limits(ranks);
	if (!rc && input == AGENT_JOB_STDIN_ALL)
		rc = agent_stdin_new(ranks->loop, ranks->uplink, input, count, &ranks->inputs, err);
	else if (!rc && input >= AGENT_JOB_STDIN_FIRST && count && !agent_job_rank(&ranks->job, 0))
		rc = agent_stdin_new(ranks->loop, ranks->uplink, input, 1, &ranks->inputs, err);
	for (size_t i = 0; !rc && i < count; i++)
		rc = fill_rank(ranks, json_array_get(list, i), i, base, &at, &left, &starts[i],
			       err);
	if (!rc)
		rc = supervise_start(ranks->supervise, starts, count, err);
	/* The ranks have copies. As long as this process held the read ends, it would not notice
	 * that a rank has closed its own. */
	agent_stdin_close_rank_ends(ranks->inputs);
	for (size_t i = 0; starts && i < count; i++) {
		free((void *)starts[i].envp);
		if (starts[i].argv != ranks->job.argv)
			free((void *)starts[i].argv); /* of a container or a role */
		idset_free((struct idset *)starts[i].cpus_os);
	}
	free(starts);
	env_free(base);
	return rc;
}

static void release_port(struct agent_ranks *ranks)
{
	if (ranks->port_fd >= 0)
		close(ranks->port_fd);
	ranks->port_fd = -1;
}

/* Start the ranks once the PMIx server has started or failed. */
static int finish_start(struct agent_ranks *ranks, const json_t *list, const unsigned char *data,
			size_t size, struct error *err)
{
	int rc = agent_pmix_start_result(ranks->pmix, err);

	if (!rc)
		rc = start_supervise(ranks, err);
	if (!rc && !ranks->job.hold_port)
		release_port(ranks);
	return rc ? rc : start_ranks(ranks, list, data, size, err);
}

/* The rank does not run, so no end will be reported for it. */
static int start_failed(struct agent_ranks *ranks, struct error *err)
{
	supervise_free(ranks->supervise);
	ranks->supervise = NULL;
	agent_pmix_stop(ranks->pmix);
	return error_prefix(err, "starting the ranks of %s", ranks->job.host);
}

/* The PMIx server may start slowly. The loop, and with it the heartbeats, continues meanwhile. */
static int defer_start(struct agent_ranks *ranks, const struct wire_message *message, json_t *list,
		       struct error *err)
{
	if (bytes_add(&ranks->pending.data, message->data, message->data_size))
		return error_memory(err, "ranks");
	ranks->pending.ranks = json_incref(list);
	ranks->pending.waits = true;
	return 0;
}

static void clear_pending(struct agent_ranks *ranks)
{
	json_decref(ranks->pending.ranks);
	bytes_free(&ranks->pending.data);
	memset(&ranks->pending, 0, sizeof ranks->pending);
}

void agent_ranks_resume_start(struct agent_ranks *ranks)
{
	struct error err = {0};
	uint64_t signals = ranks->pending.signals;

	if (!ranks->pending.waits || !ranks->pmix->ready)
		return;
	ranks->pending.waits = false;
	if (ranks->pmix->stopping) {
		agent_pmix_stop(ranks->pmix);
	} else if (finish_start(ranks, ranks->pending.ranks, ranks->pending.data.data,
				ranks->pending.data.size, &err)) {
		start_failed(ranks, &err);
		agent_uplink_fail(ranks->uplink, &err);
	}
	for (int number = 1; number < 64 && ranks->supervise; number++)
		if (signals >> number & 1)
			supervise_signal(ranks->supervise, number);
	clear_pending(ranks);
}

void agent_ranks_signal(struct agent_ranks *ranks, int number)
{
	log_info(LOG_AGENT, "forwarding signal %d to the ranks", number);
	if (ranks->supervise)
		supervise_signal(ranks->supervise, number);
	else if (ranks->pending.waits && number == SIGCONT)
		ranks->pending.signals &= ~(UINT64_C(1) << SIGSTOP);
	else if (ranks->pending.waits && number < 64)
		ranks->pending.signals |= UINT64_C(1) << number;
}

int agent_ranks_start(struct agent_ranks *ranks, const struct message *message, bool this_system,
		      struct error *err)
{
	json_t *list = message->start.ranks;
	int rc;

	if (!ranks->job.document || ranks->supervise || ranks->pending.waits ||
	    json_array_size(list) != agent_job_rank_count(&ranks->job))
		return error_set(err, ERR_DATA, "START arrived before JOB");
	if (!json_array_size(list) || agent_job_rank(&ranks->job, 0))
		release_port(ranks);  /* rank 0 is elsewhere */
	if (!json_array_size(list)) { /* this node only forwards messages */
		ranks->started_sent = ranks->done_sent = true;
		agent_uplink_report(ranks->uplink, MESSAGE_STARTED, NULL);
		agent_uplink_report(ranks->uplink, MESSAGE_DONE, &(struct message_done){NULL});
		return 0;
	}
	log_info(LOG_AGENT, "plan received: %zu ranks from rank %d, PMIx %s", json_array_size(list),
		 agent_job_rank(&ranks->job, 0), ranks->job.pmix_disabled ? "off" : "wanted");
	ranks->this_system = this_system;
	agent_files_remove(ranks->dir);
	rc = agent_plan_write(ranks->dir, message->start.plan, err);
	if (!rc)
		rc = open_logs(ranks, err);
	if (!rc)
		rc = agent_heartbeats_new(ranks->loop, ranks->uplink, ranks->dir, &ranks->job,
					  message->start.port, &ranks->heartbeats, err);
	if (!rc)
		rc = agent_pmix_start(ranks->pmix, list, err);
	if (!rc)
		rc = ranks->pmix->server ? defer_start(ranks, message->wire, list, err)
					 : finish_start(ranks, list, message->wire->data,
							message->wire->data_size, err);
	return rc ? start_failed(ranks, err) : 0;
}

void agent_ranks_stop(struct agent_ranks *ranks, int grace_ms)
{
	if (!ranks->done_sent)
		log_info(LOG_AGENT, "ending the ranks and what they started, SIGKILL after %d ms",
			 grace_ms);
	ranks->pmix->stopping = true;
	if (ranks->supervise && supervise_running(ranks->supervise))
		agent_ranks_write_stop_file(ranks, "failed");
	if (ranks->supervise) {
		supervise_stop(ranks->supervise, grace_ms);
	} else if (!ranks->done_sent) {
		ranks->done_sent = true;
		agent_uplink_report(ranks->uplink, MESSAGE_DONE, &(struct message_done){NULL});
	}
}

bool agent_ranks_are_over(const struct agent_ranks *ranks)
{
	return !ranks->supervise || ranks->done_sent;
}

void agent_ranks_flush(struct agent_ranks *ranks, bool full)
{
	const char *problem;

	send_output(ranks);
	if (ranks->logs) {
		logs_flush(ranks->logs);
		full = logs_full(ranks->logs) || full;
		problem = logs_problem(ranks->logs);
		if (problem)
			agent_uplink_note(ranks->uplink, "%s", problem);
	}
	if (ranks->finished_ms && !ranks->done_sent)
		send_done(ranks);
	if (ranks->supervise && ranks->paused != full) {
		ranks->paused = full;
		supervise_read(ranks->supervise, !full);
	}
}

void agent_ranks_write_stop_file(struct agent_ranks *ranks, const char *why)
{
	if (ranks->job.document)
		agent_stop_file_write(ranks->dir, ranks->job.stop_file, why, ranks->uplink);
}

int agent_ranks_set_job(struct agent_ranks *ranks, const struct agent_job *job, struct error *err)
{
	if (ranks->supervise)
		return error_set(err, ERR_DATA, "JOB arrived while another job is running");
	agent_job_free(&ranks->job);
	ranks->job = *job;
	ranks->pmix->job = &ranks->job;
	return 0;
}

void agent_ranks_init(struct agent_ranks *ranks, struct loop *loop, struct agent_uplink *uplink,
		      struct agent_pmix *pmix, const char *dir, int at_end_fd)
{
	*ranks = (struct agent_ranks){.loop = loop,
				      .uplink = uplink,
				      .pmix = pmix,
				      .dir = dir,
				      .at_end_fd = at_end_fd,
				      .logs_source = {on_logs_ready, -1, 0},
				      .port_fd = -1};
}

void agent_ranks_free(struct agent_ranks *ranks)
{
	supervise_free(ranks->supervise);
	clear_pending(ranks);
	agent_stdin_free(ranks->inputs);
	agent_heartbeats_free(ranks->heartbeats);
	loop_remove(ranks->loop, &ranks->logs_source);
	logs_free(ranks->logs);
	free(ranks->left);
	bytes_free(&ranks->output);
	agent_job_free(&ranks->job);
	release_port(ranks);
}
