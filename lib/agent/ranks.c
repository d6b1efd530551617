/* SPDX-License-Identifier: BSD-3-Clause */
/* The ranks of this node: what they are told, their start, their output, their ends.
 *
 * JOB, for all nodes:  {world, names, first, counts, log_dir, pmix: "auto|on|off", hold, stdin,
 *                       input, watch}
 *                      data: the program's arguments, the environment, the folder
 * START, for one node: {ranks: [{rank, cpus}], plan: berth.plan/1}
 *                      data: for each rank "+NAME=VALUE" to set, "-NAME" to remove
 * ENDED:               {rank, local_rank, pid, code, signal, core, stopped, oom, start_error,
 *                      last: [lines], peak_memory_bytes} */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/agent_internal.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "hostlist/idset.h"

#define OUTPUT_BATCH (32u << 10) /* bytes of output in one message, when there is much */

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
		rc = error_set(err, ERR_DATA, "START: '%.60s' is no change of a variable", change);
	free(copy);
	return rc;
}

static int base_environment(const struct agent_job *job, struct env **out, struct error *err)
{
	struct env *env = env_new();
	int rc = env ? 0 : error_memory(err, "the environment");

	for (size_t i = 0; !rc && i < job->base_count; i++) {
		char *copy = strdup(job->base[i]), *value = copy ? strchr(copy, '=') : NULL;

		if (!copy) {
			rc = error_memory(err, "the environment");
		} else if (value && value != copy) {
			*value++ = 0;
			rc = env_set(env, copy, value, ENV_FROM_USER, NULL, err);
		}
		free(copy);
	}
	if (rc)
		env_free(env);
	else
		*out = env;
	return rc;
}

/* The environment of one rank as execve wants it; malloced. */
static int rank_environment(struct agent *agent, const struct env *base, size_t local_rank,
			    const char *const *changes, size_t count, char ***out,
			    struct error *err)
{
	struct env *env = env_copy(base), *pmix = NULL;
	int rc = env ? 0 : error_memory(err, "the environment");

	for (size_t i = 0; !rc && i < count; i++)
		rc = apply_change(env, changes[i], err);
	if (!rc && agent->server) {
		pmix = env_new();
		rc = pmix ? ranks_server_process.environment(agent->server, (int)local_rank, pmix,
							     err)
			  : error_memory(err, "the environment");
		if (!rc)
			rc = env_apply(env, pmix, err);
	}
	if (!rc) {
		*out = env_to_envp(env);
		if (!*out)
			rc = error_memory(err, "the environment");
	}
	env_free(pmix);
	env_free(env);
	return rc;
}

/* ---- what supervise tells ---- */

static int send_output(struct agent *agent)
{
	if (!agent->output.size)
		return 0;
	agent_uplink_send(agent->uplink, MESSAGE_OUTPUT, 0, NULL, agent->output.data,
			  agent->output.size);
	bytes_drop(&agent->output, agent->output.size);
	return 0;
}

static int rank_of(const struct agent *agent, int local_rank)
{
	return agent->job.first_rank[agent->params.node_index] + local_rank;
}

static void on_line(void *context, int local_rank, enum supervise_stream stream, const char *text,
		    size_t size, bool newline)
{
	struct agent *agent = context;
	struct message_output output = {(uint32_t)rank_of(agent, local_rank), (int)stream, newline,
					text, size};

	if (agent->logs)
		logs_line(agent->logs, (size_t)local_rank, (int)stream, text, size, newline);
	message_add_output(&agent->output, &output);
	if (agent->output.size > OUTPUT_BATCH)
		send_output(agent);
}

static void on_started(void *context, int local_rank, pid_t pid)
{
	struct agent *agent = context;

	agent_heartbeats_started(agent, local_rank, pid);
	if (++agent->started_count < agent->rank_count || agent->started_sent)
		return;
	agent->started_sent = true;
	agent_uplink_send(agent->uplink, MESSAGE_STARTED, 0,
			  json_pack("{s:b}", "pmix", agent->server != NULL), NULL, 0);
}

static json_t *output_tail(struct agent *agent, int local_rank)
{
	json_t *list = json_array();
	const char *const *lines = NULL;
	size_t count = agent->logs ? logs_tail(agent->logs, (size_t)local_rank, &lines) : 0;

	for (size_t i = 0; i < count; i++)
		json_array_append_new(list, json_text(lines[i]));
	return list;
}

static void on_ended(void *context, const struct supervise_end *end)
{
	struct agent *agent = context;
	bool bad = end->code != 0 && !end->stopped_by_us;

	send_output(agent); /* the head reads its last lines before it reads of its end */
	agent_heartbeats_poll(agent, clock_now_ms(), true);
	agent_uplink_send(agent->uplink, MESSAGE_ENDED, 0,
			  json_pack("{s:i, s:i, s:i, s:i, s:i, s:b, s:b, s:i, s:o, s:o, s:I, s:o*}",
				    "rank", end->rank, "local_rank", end->local_rank, "pid",
				    (int)end->pid, "code", end->code, "signal", end->signal, "core",
				    end->core_dumped, "stopped", end->stopped_by_us, "oom",
				    (int)end->oom, "start_error", json_text(end->start_error),
				    "last",
				    bad ? output_tail(agent, end->local_rank) : json_array(),
				    "peak_memory_bytes", (json_int_t)end->peak_memory_bytes, "said",
				    agent_read_report(agent)),
			  NULL, 0);
	if (agent->server)
		ranks_server_process.rank_ended(agent->server, end->local_rank);
	/* The server's process is a child of ours too: it goes before supervise looks for what the
	 * ranks left behind. */
	if (supervise_running(agent->supervise) == 0)
		agent_pmix_stop(agent);
	/* All gone by themselves: what they left behind goes too. */
	if (supervise_running(agent->supervise) == 0 && !agent->stopping)
		agent_ranks_stop(agent, SUPERVISE_GRACE_MS);
}

static void on_finished(void *context, const char *left)
{
	struct agent *agent = context;

	send_output(agent);
	agent->done_sent = true;
	agent_uplink_send(agent->uplink, MESSAGE_DONE, 0,
			  json_pack("{s:o}", "left", json_text(left)), NULL, 0);
}

static void on_note(void *context, const char *text)
{
	agent_uplink_note(((struct agent *)context)->uplink, "%s", text);
}

static void on_supervise_ready(struct loop_source *source, uint32_t events)
{
	struct agent *agent =
		(struct agent *)((char *)source - offsetof(struct agent, supervise_source));
	const char *problem;

	(void)events;
	supervise_dispatch(agent->supervise);
	if (!agent->logs)
		return;
	logs_flush(agent->logs);
	problem = logs_problem(agent->logs);
	if (problem)
		agent_uplink_note(agent->uplink, "%s", problem);
}

/* ---- start and stop ---- */

static int open_logs(struct agent *agent, struct error *err)
{
	int *ranks = calloc(agent->rank_count, sizeof *ranks), rc;

	if (!ranks)
		return error_memory(err, "the ranks' output");
	for (size_t i = 0; i < agent->rank_count; i++)
		ranks[i] = rank_of(agent, (int)i);
	struct logs_options options = {
		.dir = agent->job.log_dir,
		.job_id = agent->params.job,
		.host = agent->params.name,
		.attempt = (int)agent->attempt,
		.rank_count = agent->rank_count,
		.ranks = ranks,
	};

	rc = logs_open(&options, &agent->logs, err);
	free(ranks);
	return rc;
}

static int write_plan(const struct agent *agent, const json_t *plan, struct error *err)
{
	char path[sizeof agent->dir + 16];
	char *text = json_dumps(plan, JSON_INDENT(2));
	int rc;

	if (!text)
		return error_memory(err, "the plan's file");
	snprintf(path, sizeof path, "%s/plan.json", agent->dir);
	rc = file_write_atomic(path, text, strlen(text), 0600, err);
	free(text);
	return rc;
}

static int start_supervise(struct agent *agent, struct error *err)
{
	struct supervise_options options = {
		.this_system = agent_discovery_result(agent->discovery, NULL)->this_system,
		.exempt_pid = server_process_pid(agent->pmix)};
	struct supervise_events events = {.context = agent,
					  .started = on_started,
					  .line = on_line,
					  .ended = on_ended,
					  .finished = on_finished,
					  .note = on_note};
	int rc = supervise_new(&options, &events, &agent->supervise, err);

	if (rc)
		return rc;
	agent->supervise_source.ready = on_supervise_ready;
	return loop_add(agent->loop, &agent->supervise_source,
			supervise_descriptor(agent->supervise), EPOLLIN, err);
}

/* One rank's part of START. */
static int fill_rank(struct agent *agent, const json_t *entry, size_t local_rank,
		     const struct env *base, const unsigned char **at, size_t *left,
		     struct supervise_rank *out, struct error *err)
{
	const char *cpus = json_string_value(json_object_get(entry, "cpus"));
	const char **changes = NULL;
	struct idset *set = NULL;
	char **envp = NULL;
	size_t count;
	int rc = bytes_next_strings(at, left, &changes, &count, err);

	if (!rc)
		rc = idset_parse(cpus ? cpus : "", &set, err);
	if (!rc)
		rc = rank_environment(agent, base, local_rank, changes, count, &envp, err);
	free(changes);
	*out = (struct supervise_rank){
		.rank = rank_of(agent, (int)local_rank),
		.local_rank = (int)local_rank,
		.argv = agent->job.argv,
		.envp = envp,
		.cwd = agent->job.cwd[0],
		.cpus_os = set,
		.stdin_fd = agent->job.input ? agent_stdin_rank_fd(agent, local_rank)
			    : agent->job.pass_stdin && rank_of(agent, (int)local_rank) == 0 ? 0
											    : -1,
	};
	return rc;
}

static int start_ranks(struct agent *agent, const json_t *list, const unsigned char *at,
		       size_t left, struct error *err)
{
	struct supervise_rank *ranks = calloc(agent->rank_count, sizeof *ranks);
	struct env *base = NULL;
	int rc = ranks ? base_environment(&agent->job, &base, err) : error_memory(err, "ranks");

	if (!rc && agent->job.input)
		rc = agent_stdin_open(agent, err);
	for (size_t i = 0; !rc && i < agent->rank_count; i++)
		rc = fill_rank(agent, json_array_get(list, i), i, base, &at, &left, &ranks[i], err);
	if (!rc)
		rc = supervise_start(agent->supervise, ranks, agent->rank_count, err);
	agent_stdin_close_rank_ends(agent);
	for (size_t i = 0; ranks && i < agent->rank_count; i++) {
		free((void *)ranks[i].envp);
		idset_free((struct idset *)ranks[i].cpus_os);
	}
	free(ranks);
	env_free(base);
	return rc;
}

/* Once the PMIx server is there, or will not be. */
static int finish_start(struct agent *agent, const json_t *list, const unsigned char *data,
			size_t size, struct error *err)
{
	int rc = agent_pmix_started(agent, err);

	if (!rc)
		rc = start_supervise(agent, err);
	if (!rc && !agent->job.hold_port && agent->port_fd >= 0) {
		close(agent->port_fd);
		agent->port_fd = -1;
	}
	return rc ? rc : start_ranks(agent, list, data, size, err);
}

/* Nothing of it runs, and it will tell of no end. */
static int start_failed(struct agent *agent, struct error *err)
{
	loop_remove(agent->loop, &agent->supervise_source);
	supervise_free(agent->supervise);
	agent->supervise = NULL;
	agent_pmix_stop(agent);
	return error_prefix(err, "starting the ranks of %s", agent->params.name);
}

/* The PMIx server takes its time; the loop, and with it the beats, goes on. */
static int defer_start(struct agent *agent, const struct wire_message *message, json_t *list,
		       struct error *err)
{
	agent->pending.data = malloc(message->data_size + 1);
	if (!agent->pending.data)
		return error_memory(err, "ranks");
	memcpy(agent->pending.data, message->data_size ? message->data : "", message->data_size);
	agent->pending.size = message->data_size;
	agent->pending.ranks = json_incref(list);
	agent->pending.waits = true;
	return 0;
}

static void clear_pending(struct agent *agent)
{
	json_decref(agent->pending.ranks);
	free(agent->pending.data);
	memset(&agent->pending, 0, sizeof agent->pending);
}

void agent_ranks_resume_start(struct agent *agent)
{
	struct error err = {0};
	uint64_t signals = agent->pending.signals;

	if (!agent->pending.waits || !agent->pending.ready)
		return;
	agent->pending.waits = false;
	if (agent->stopping) {
		agent_pmix_stop(agent);
	} else if (finish_start(agent, agent->pending.ranks, agent->pending.data,
				agent->pending.size, &err)) {
		start_failed(agent, &err);
		agent_uplink_fail(agent->uplink, &err);
	}
	for (int number = 1; number < 64 && agent->supervise; number++)
		if (signals >> number & 1)
			supervise_signal(agent->supervise, number);
	clear_pending(agent);
}

void agent_ranks_signal(struct agent *agent, int number)
{
	if (agent->supervise)
		supervise_signal(agent->supervise, number);
	else if (agent->pending.waits && number < 64)
		agent->pending.signals |= UINT64_C(1) << number;
}

int agent_ranks_start(struct agent *agent, const struct wire_message *message, const json_t *text,
		      struct error *err)
{
	json_t *list, *plan;
	int rc = json_get_array("START", text, "ranks", &list, err);

	if (!rc)
		rc = json_get_object("START", text, "plan", &plan, err);
	if (rc)
		return rc;
	if (!agent->have_job || agent->supervise || agent->pending.waits ||
	    json_array_size(list) != agent->rank_count)
		return error_set(err, ERR_DATA, "START does not follow JOB");
	if (!agent->rank_count) { /* this node only passes messages on */
		agent->started_sent = agent->done_sent = true;
		agent_uplink_send(agent->uplink, MESSAGE_STARTED, 0, json_pack("{s:b}", "pmix", 0),
				  NULL, 0);
		agent_uplink_send(agent->uplink, MESSAGE_DONE, 0, json_pack("{s:n}", "left"), NULL,
				  0);
		return 0;
	}
	agent_remove_files(agent);
	rc = write_plan(agent, plan, err);
	if (!rc)
		rc = open_logs(agent, err);
	if (!rc)
		rc = agent_heartbeats_open(agent, err);
	if (!rc)
		rc = agent_pmix_start(agent, list, err);
	if (!rc)
		rc = agent->server
			     ? defer_start(agent, message, list, err)
			     : finish_start(agent, list, message->data, message->data_size, err);
	return rc ? start_failed(agent, err) : 0;
}

void agent_ranks_stop(struct agent *agent, int grace_ms)
{
	agent->stopping = true;
	if (agent->supervise && supervise_running(agent->supervise))
		agent_write_stop_file(agent, "failed");
	if (agent->supervise) {
		supervise_stop(agent->supervise, grace_ms);
	} else if (!agent->done_sent) {
		agent->done_sent = true;
		agent_uplink_send(agent->uplink, MESSAGE_DONE, 0, json_pack("{s:n}", "left"), NULL,
				  0);
	}
}

void agent_ranks_flush(struct agent *agent)
{
	bool full = agent_uplink_is_full(agent->uplink);

	send_output(agent);
	if (agent->supervise && agent->reading == full) {
		agent->reading = !full;
		supervise_read(agent->supervise, !full);
	}
	agent_downlinks_pause(agent->downlinks, full);
}

void agent_ranks_close(struct agent *agent)
{
	loop_remove(agent->loop, &agent->supervise_source);
	supervise_free(agent->supervise);
	agent->supervise = NULL;
	clear_pending(agent);
	agent_stdin_close(agent);
	agent_heartbeats_close(agent);
	logs_free(agent->logs);
	agent->logs = NULL;
	bytes_free(&agent->output);
	agent_job_free(&agent->job);
}
