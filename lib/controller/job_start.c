/* SPDX-License-Identifier: BSD-3-Clause */
#include "controller/job_internal.h"

#include <arpa/inet.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/query.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "base/json.h"
#include "overlay/messages.h"
#include "process/executable.h"
#include "process/logs.h"

#define REACH_MS 1000 /* how long one node may take to try all addresses */
/* Probes carry data, because a network may pass small packets only. All of it goes to one node. */
#define MANY_NODES 128
#define MANY_NODES_LOAD 16384 /* bytes; more than a jumbo frame */
#define REACH_NODES_PER_MS 4  /* extra time for nodes that start to probe later */
#define REACH_SLACK_MS 3000   /* extra time for the answers to come up the tree */

/* Which of the first node's addresses the others reach; behind them, those of other roles. */
struct job_reach {
	size_t address_count, own_count; /* in all; of the first node, 0 if it is the only one */
	int *reached, *shared, *stalled; /* [address_count]: see struct plan_reach */
	size_t nodes;			 /* that have answered */
};

/* Format "10.0.0.1:4711"; "" if other nodes cannot use the address. */
static void candidate(const struct inventory_address *address, int port, char *out, size_t size)
{
	char host[INET6_ADDRSTRLEN];

	out[0] = 0;
	if (!address->up || address->link_local ||
	    !inet_ntop(address->family, address->bytes, host, sizeof host))
		return;
	snprintf(out, size, address->family == AF_INET6 ? "[%s]:%d" : "%s:%d", host, port);
}

json_t *job_addresses(const struct job *job)
{
	const struct inventory *first = &job->inventories[0];
	json_t *list = json_array();

	for (size_t i = 0; i < first->address_count; i++) {
		char text[80];

		candidate(&first->addresses[i], controller_probe_port(job->controller), text,
			  sizeof text);
		json_array_append_new(list, json_string(text));
	}
	return list;
}

int job_reached(const struct job *job, size_t other)
{
	size_t at = job->reach->own_count + other;

	return at < job->reach->address_count ? job->reach->reached[at] : 0;
}

int job_start_probe(struct job *job, struct error *err)
{
	const struct job_role *role = job->request->role;
	struct job_reach *reach = job->reach;
	json_t *list = job->node_count > 1 ? job_addresses(job) : json_array();
	int probe_ms = REACH_MS + (int)(job->node_count / REACH_NODES_PER_MS);
	size_t count;

	reach->own_count = json_array_size(list);
	if (role)
		json_array_extend(list, (json_t *)(uintptr_t)role->others);
	count = json_array_size(list);
	if (!count) {
		json_decref(list);
		job_continue(job, JOB_STEP_PLAN);
		return 0;
	}

	reach->reached = calloc(count + 1, sizeof *reach->reached);
	reach->shared = calloc(count + 1, sizeof *reach->shared);
	reach->stalled = calloc(count + 1, sizeof *reach->stalled);
	if (!reach->reached || !reach->shared || !reach->stalled || !list) {
		json_decref(list);
		return error_memory(err, "the controller's addresses");
	}
	for (size_t i = 0; i < count; i++)
		reach->shared[i] = reach->stalled[i] = -1;
	reach->address_count = count;
	job_set_deadline(job, probe_ms + AGENT_PROBE_EXTENSION_MS + REACH_SLACK_MS);
	return controller_send(job->controller, MESSAGE_PROBE, WIRE_ALL, 0, 0,
			       &(struct message_probe){list, probe_ms,
						       job->node_count < MANY_NODES
							       ? WIRE_PROBE_LOAD_MAX
							       : MANY_NODES_LOAD},
			       NULL, 0, err);
}

static void handle_probed(struct job *job, size_t node, const struct message *message)
{
	struct job_reach *reach = job->reach;

	if (job->phase != JOB_PHASE_PROBE)
		return;
	message_add_probed(&message->probed, job->node_count, reach->address_count, reach->reached,
			   reach->shared, reach->stalled, &reach->nodes);
	if (reach->nodes >= job->node_count)
		job_continue(job, JOB_STEP_PLAN);
}

void job_start_probes_due(struct job *job)
{
	job_note(job->sink, LOG_WARNING,
		 "only %zu of %zu nodes reported in time which addresses of the first node they "
		 "reach",
		 job->reach->nodes, job->node_count);
	job_continue(job, JOB_STEP_PLAN);
}

static int open_reach(struct job *job, struct error *err)
{
	job->reach = calloc(1, sizeof *job->reach);
	return job->reach ? 0 : error_memory(err, "the controller's addresses");
}

static void close_reach(struct job *job)
{
	free(job->reach->reached);
	free(job->reach->shared);
	free(job->reach->stalled);
	free(job->reach);
}

const struct job_part job_reach_part = {
	.open = open_reach,
	.handlers = (const struct job_handler[]){{MESSAGE_PROBED, handle_probed}, {0}},
	.close = close_reach,
};

/* ---- plan ---- */

struct plan_request job_plan_request(const struct job *job)
{
	const struct job_request *request = job->request;
	struct plan_request plan = request->plan;

	if (request->any_master_addr)
		plan.master_addr = plan.iface = plan.subnet = NULL;
	plan.single_host = request->any_master_addr || launcher_is_here(request->launch->launcher);
	plan.port = job->nodes[0].port;
	plan.spares = request->spares;
	plan.attempt = job_attempt(request);
	return plan;
}

int job_start_make_plan(struct job *job, const struct plan_request *plan_request, struct error *err)
{
	const struct job_request *request = job->request;
	const struct plan_reach reach = {job->reach->own_count, job->reach->reached,
					 job->reach->shared, job->reach->stalled};
	struct plan *plan = &job->plan;
	size_t first = 0;
	int rc;

	rc = plan_make(request->launch->alloc, job->inventories, job->node_count, plan_request,
		       job->node_count > 1 && !request->any_master_addr ? &reach : NULL,
		       request->launch->env, plan, err);
	if (rc)
		return rc;
	job->planned = true;
	plan->end_time = job->end_time;
	while (!plan->nodes[first].rank_count)
		first++;
	if (job->nodes[first].port > 0)
		plan->port = job->nodes[first].port;
	job->port = plan->port;
	return 0;
}

static void check_world_size(const char *program, const struct env *env, int world_size,
			     const struct job_sink *sink)
{
	char path[4096];

	if (world_size > 1 && executable_find(program, env, path, sizeof path) &&
	    executable_uses_open_mpi(path))
		job_note(sink, LOG_WARNING,
			 "%s uses Open MPI: with --pmix off it runs as %d worlds of one rank each; "
			 "without that option, as one world of %d ranks",
			 program, world_size, world_size);
}

static void check_logs(const char *log_dir, int world_size, const struct job_sink *sink)
{
	int lowest = -1;
	size_t count = logs_stale_ranks(log_dir, world_size, &lowest);

	if (count)
		job_note(sink, LOG_WARNING,
			 "an earlier run with more than %d rank%s left %zu log%s in %s, from "
			 "rank-%04d.log on, which this run does not change",
			 world_size, world_size == 1 ? "" : "s", count, count == 1 ? "" : "s",
			 log_dir, lowest);
}

void job_start_announce(struct job *job)
{
	const struct job_request *request = job->request;
	const struct plan *plan = &job->plan;
	char log_dir[PATH_MAX], of_role[48] = "";

	if (request->role)
		snprintf(of_role, sizeof of_role, "role %s: ", request->role->name);
	for (size_t i = 0; i < plan->warning_count; i++)
		job_note(job->sink, LOG_WARNING, "%s%s", of_role, plan->warnings[i]);
	for (size_t i = 0; i < plan->node_count; i++) {
		const struct plan_node *node = &plan->nodes[i];

		for (size_t w = 0; w < node->warning_count; w++) {
			char text[1200];

			snprintf(text, sizeof text, "%s%s", of_role, node->warnings[w]);
			node_notes_add(&job->notes, i, text);
		}
	}
	node_notes_print(&job->notes);
	if (request->pmix == JOB_PMIX_OFF)
		check_world_size(request->argv[0], request->launch->env, plan->world_size,
				 job->sink);
	if (request->log_dir) {
		logs_attempt_dir(request->log_dir, request->plan.max_restarts, plan->attempt,
				 log_dir, sizeof log_dir);
		check_logs(log_dir, plan->world_size, job->sink);
	}
	if (job->sink->begun)
		job->sink->begun(job->sink->context, plan->world_size);
}

/* ---- start ---- */

static const char *pmix_name(enum job_pmix pmix)
{
	return pmix == JOB_PMIX_ON ? "on" : pmix == JOB_PMIX_OFF ? "off" : "auto";
}

static int add_list(struct bytes *out, const char *const *list)
{
	size_t count = 0;

	while (list && list[count])
		count++;
	return bytes_add_strings(out, list, count);
}

/* A launcher may start agents in another directory, so make a relative path relative to the
 * ranks' directory. */
static const char *log_dir_of_attempt(const struct job *job, char *out, size_t size)
{
	const struct job_request *request = job->request;
	char dir[PATH_MAX];

	if (!request->log_dir)
		return NULL;
	logs_attempt_dir(request->log_dir, request->plan.max_restarts, job->plan.attempt, dir,
			 sizeof dir);
	snprintf(out, size, "%s%s%s", dir[0] != '/' && request->cwd ? request->cwd : "",
		 dir[0] != '/' && request->cwd ? "/" : "", dir);
	return out;
}

static int send_job(const struct job *job, struct error *err)
{
	const struct job_request *request = job->request;
	const char *cwd[] = {request->cwd, NULL};
	json_t *names = json_array(), *first = json_array(), *counts = json_array();
	char log_dir[2 * PATH_MAX], **envp = env_to_envp(request->launch->env);
	struct bytes data = {0};
	json_int_t next = 0;
	int rc = 0;

	for (size_t i = 0; i < job->node_count; i++) {
		const struct plan_node *node = &job->plan.nodes[i];

		json_array_append_new(names, json_text(request->launch->alloc->nodes[i].name));
		/* Give a node without ranks the number that its first rank would have, because
		 * PMIx requires one. */
		json_array_append_new(first, json_integer(next));
		next += (json_int_t)node->rank_count;
		json_array_append_new(counts, json_integer((json_int_t)node->rank_count));
	}
	struct message_job body = {
		.world_size = job->plan.world_size,
		.names = names,
		.first = first,
		.counts = counts,
		.log_dir = log_dir_of_attempt(job, log_dir, sizeof log_dir),
		.pmix = pmix_name(request->pmix),
		.hold_port = request->port_hold,
		.service = request->role && request->role->service,
		.placeholders = request->role != NULL,
		.block = job_port_block(job),
		.input = job_input_kind(request),
		.stop_file = env_get(request->launch->env, "BERTH_STOP_FILE"),
		.limits = limits_to_json(&request->limits),
		.container = request->container.image
				     ? container_to_json(&request->container, request->launch->env)
				     : NULL,
	};

	if (!envp || add_list(&data, request->argv) || add_list(&data, (const char *const *)envp) ||
	    add_list(&data, cwd)) {
		message_drop(MESSAGE_JOB, &body);
		rc = error_memory(err, "the ranks' program");
	} else {
		rc = controller_send(job->controller, MESSAGE_JOB, WIRE_ALL,
				     (uint32_t)job->plan.attempt, 0, &body, data.data, data.size,
				     err);
	}
	bytes_free(&data);
	free(envp);
	return rc;
}

/* Add one rank's changes as "+NAME=VALUE" and "-NAME". */
static int add_changes(const struct env *changes, struct bytes *out)
{
	size_t count = env_count(changes);
	unsigned char *at = bytes_extend(out, 4);

	if (!at)
		return -1;
	bytes_put_u32(at, (uint32_t)count);
	for (size_t i = 0; i < count; i++) {
		const struct env_var *var = env_at(changes, i);

		if (bytes_add(out, var->value ? "+" : "-", 1) ||
		    bytes_add(out, var->name, strlen(var->name)))
			return -1;
		if (var->value &&
		    (bytes_add(out, "=", 1) || bytes_add(out, var->value, strlen(var->value))))
			return -1;
		if (bytes_add(out, "", 1))
			return -1;
	}
	return 0;
}

static int send_node(const struct job *job, size_t index, struct error *err)
{
	const struct launch_options *launch = job->request->launch;
	const struct plan_node *node = &job->plan.nodes[index];
	struct plan_request plan_request = job->request->plan;
	struct bytes data = {0};
	json_t *ranks = json_array();
	char run[1024], ports[32];
	/* With --per-node, the program starts ranks of its own. */
	bool meet = job->plan.world_size > 1 && !plan_request.per_node;
	int rc = 0;

	controller_run_names(launch, run, sizeof run);
	job_ports(job, ports, sizeof ports);
	plan_request.dir = controller_tmpdir(job->controller, index);
	plan_request.run = run;
	plan_request.ports = ports;
	plan_request.port = job->port;
	plan_request.single_host = launcher_is_here(launch->launcher);
	plan_request.outside = job->request->role ? job->request->role->network : NULL;
	for (size_t i = 0; !rc && i < node->rank_count; i++) {
		struct env *changes = NULL;
		char *cpus = idset_format(node->ranks[i].cpus_os);

		rc = plan_environment(&job->plan, &job->inventories[index], index, i, &plan_request,
				      launch->env, &changes, err);
		if (!rc && (!cpus || add_changes(changes, &data)))
			rc = error_memory(err, "the ranks' environment");
		json_array_append_new(ranks, json_pack("{s:i, s:s}", "rank", node->ranks[i].rank,
						       "cpus", cpus ? cpus : ""));
		env_free(changes);
		free(cpus);
	}
	if (rc) {
		json_decref(ranks);
	} else {
		rc = controller_send(job->controller, MESSAGE_START, (uint32_t)index,
				     (uint32_t)job->plan.attempt, 0,
				     &(struct message_start){ranks,
							     plan_file_to_json(&job->plan, index),
							     meet ? job->port : 0},
				     data.data, data.size, err);
	}
	bytes_free(&data);
	return rc;
}

int job_start_send(const struct job *job, struct error *err)
{
	int rc = send_job(job, err);

	for (size_t i = 0; !rc && i < job->node_count; i++)
		if (job_node_is_due(job, i))
			rc = send_node(job, i, err);
	return rc;
}

int job_start_send_others(const struct job *job, struct error *err)
{
	int rc = 0;

	for (size_t i = 0; !rc && i < job->node_count; i++)
		if ((long)i != job_node_of_rank(job, 0))
			rc = send_node(job, i, err);
	return rc;
}
