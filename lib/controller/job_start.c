/* SPDX-License-Identifier: BSD-3-Clause */
#include "controller/job_start.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/json.h"
#include "overlay/messages.h"
#include "process/heartbeat.h"

#define REACH_MS 1000	     /* for one node to try all addresses */
#define REACH_NODES_PER_MS 4 /* later starts are waited for */
#define REACH_SLACK_MS 3000  /* for the answers to come up the tree */

static size_t node_count(const struct job_start *start)
{
	return start->request->launch->alloc->node_count;
}

int job_start_begin(struct job_start *start, const struct job_request *request,
		    const struct job_sink *sink, struct error *err)
{
	*start = (struct job_start){.request = request, .sink = sink};
	start->inventories = calloc(node_count(start), sizeof *start->inventories);
	return start->inventories ? 0 : error_memory(err, "the nodes");
}

void job_start_free(struct job_start *start)
{
	for (size_t i = 0; start->inventories && i < node_count(start); i++)
		inventory_free(&start->inventories[i]);
	free(start->inventories);
	free(start->reached);
	free(start->shared);
	if (start->planned)
		plan_free(&start->plan);
	memset(start, 0, sizeof *start);
}

int job_start_add_inventory(struct job_start *start, size_t node, const json_t *text,
			    struct error *err)
{
	json_t *inventory;
	int64_t port;
	int rc = json_get_object("CARD", text, "card", &inventory, err);

	if (!rc)
		rc = json_get_int("CARD", text, "port", -1, 65535, &port, err);
	if (!rc)
		rc = inventory_from_json(inventory, &start->inventories[node], err);
	if (!rc && node == 0)
		start->port = (int)port;
	return rc;
}

/* "10.0.0.1:4711"; "" when others cannot use it. */
static void candidate(const struct inventory_address *address, int port, char *out, size_t size)
{
	char host[INET6_ADDRSTRLEN];

	out[0] = 0;
	if (!address->up || address->link_local ||
	    !inet_ntop(address->family, address->bytes, host, sizeof host))
		return;
	snprintf(out, size, address->family == AF_INET6 ? "[%s]:%d" : "%s:%d", host, port);
}

int job_start_probe(struct job_start *start, struct controller *controller, int64_t *deadline_ms,
		    struct error *err)
{
	const struct inventory *first = &start->inventories[0];
	json_t *list = json_array();
	int probe_ms = REACH_MS + (int)(node_count(start) / REACH_NODES_PER_MS);

	start->reached = calloc(first->address_count + 1, sizeof *start->reached);
	start->shared = calloc(first->address_count + 1, sizeof *start->shared);
	if (!start->reached || !start->shared || !list) {
		json_decref(list);
		return error_memory(err, "the head's addresses");
	}
	for (size_t i = 0; i < first->address_count; i++) {
		char text[80];

		candidate(&first->addresses[i], controller_probe_port(controller), text,
			  sizeof text);
		json_array_append_new(list, json_string(text));
		start->shared[i] = -1;
	}
	start->address_count = first->address_count;
	*deadline_ms = clock_now_ms() + probe_ms + AGENT_PROBE_EXTENSION_MS + REACH_SLACK_MS;
	return controller_send(controller, MESSAGE_PROBE, WIRE_ALL, 0, 0,
			       json_pack("{s:o, s:i}", "addresses", list, "deadline_ms", probe_ms),
			       NULL, 0, err);
}

bool job_start_handle_probed(struct job_start *start, const struct wire_message *message)
{
	message_add_probed(message, node_count(start), start->address_count, start->reached,
			   start->shared, &start->reach_nodes);
	return start->reach_nodes >= node_count(start);
}

long job_start_find_rank(const struct job_start *start, int64_t rank)
{
	for (size_t i = 0; i < start->plan.node_count; i++) {
		const struct plan_node *node = &start->plan.nodes[i];

		if (node->rank_count && rank >= node->ranks[0].rank &&
		    rank < node->ranks[0].rank + (int64_t)node->rank_count)
			return (long)i;
	}
	return -1;
}

int job_start_make_plan(struct job_start *start, struct error *err)
{
	const struct job_request *request = start->request;
	struct plan_request plan_request = request->plan;
	const struct plan_reach reach = {start->address_count, start->reached, start->shared};
	struct plan *plan = &start->plan;
	int rc;

	if (request->any_master_addr)
		plan_request.master_addr = plan_request.iface = plan_request.subnet = NULL;
	plan_request.single_host =
		request->any_master_addr || request->launch->launcher->single_host;
	plan_request.port = start->port;
	plan_request.spares = request->spares;
	rc = plan_make(request->launch->alloc, start->inventories, node_count(start), &plan_request,
		       node_count(start) > 1 && !request->any_master_addr ? &reach : NULL,
		       request->launch->env, plan, err);
	if (rc)
		return rc;
	start->planned = true;
	for (size_t i = 0; i < plan->warning_count; i++)
		job_note(start->sink, LOG_WARNING, "%s", plan->warnings[i]);
	for (size_t i = 0; i < plan->node_count; i++) {
		const struct plan_node *node = &plan->nodes[i];

		start->nodes_with_ranks += node->rank_count > 0;
		for (size_t w = 0; w < node->warning_count; w++)
			job_note(start->sink, LOG_WARNING, "%s: %s", node->node, node->warnings[w]);
	}
	if (request->pmix == JOB_PMIX_OFF)
		job_check_world_size(request->argv[0], request->launch->env, plan->world_size,
				     start->sink);
	job_check_logs(request->log_dir, plan->world_size, start->sink);
	return 0;
}

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

/* A launcher may start agents in another directory: what is relative is so to the ranks'. */
static json_t *log_dir_of_attempt(const struct job_request *request)
{
	const char *dir = request->log_dir;

	return dir && dir[0] != '/' && request->cwd ? json_sprintf("%s/%s", request->cwd, dir)
						    : json_text(dir);
}

static int send_job(const struct job_start *start, struct controller *controller, struct error *err)
{
	const struct job_request *request = start->request;
	const char *cwd[] = {request->cwd, NULL};
	json_t *names = json_array(), *first = json_array(), *counts = json_array();
	char **envp = env_to_envp(request->launch->env);
	struct bytes data = {0};
	json_int_t next = 0;
	int rc = 0;

	for (size_t i = 0; i < node_count(start); i++) {
		const struct plan_node *node = &start->plan.nodes[i];

		json_array_append_new(names, json_text(request->launch->alloc->nodes[i].name));
		/* A node without ranks stands where its first would be: PMIx counts on it. */
		json_array_append_new(first, json_integer(next));
		next += (json_int_t)node->rank_count;
		json_array_append_new(counts, json_integer((json_int_t)node->rank_count));
	}
	json_t *text =
		json_pack("{s:i, s:o, s:o, s:o, s:o, s:s, s:b, s:b, s:b, s:b, s:o}", "world",
			  start->plan.world_size, "names", names, "first", first, "counts", counts,
			  "log_dir", log_dir_of_attempt(request), "pmix", pmix_name(request->pmix),
			  "hold", request->port_hold, "stdin",
			  request->pass_stdin && request->launch->launcher->uses_socket_pair,
			  "input", request->driver != NULL, "watch",
			  request->want_heartbeats || request->hang_timeout_ms > 0, "stop_file",
			  json_text(env_get(request->launch->env, "BERTH_STOP_FILE")));

	if (!envp || !text || add_list(&data, request->argv) ||
	    add_list(&data, (const char *const *)envp) || add_list(&data, cwd)) {
		json_decref(text);
		rc = error_memory(err, "the ranks' program");
	} else {
		rc = controller_send(controller, MESSAGE_JOB, WIRE_ALL,
				     (uint32_t)start->plan.attempt, 0, text, data.data, data.size,
				     err);
	}
	bytes_free(&data);
	free(envp);
	return rc;
}

/* One rank's changes as "+NAME=VALUE" and "-NAME". */
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

static int send_node(const struct job_start *start, struct controller *controller, size_t index,
		     struct error *err)
{
	const struct plan_node *node = &start->plan.nodes[index];
	struct plan_request plan_request = start->request->plan;
	struct bytes data = {0};
	json_t *ranks = json_array();
	char plan_file[256], stop_file[256], report[256];
	const char *stop = env_get(start->request->launch->env, "BERTH_STOP_FILE");
	int rc = 0;

	snprintf(plan_file, sizeof plan_file, "%s/plan.json", controller_tmpdir(controller, index));
	/* Private ones, so that no file system must be shared; the user's own stop file stays. */
	snprintf(stop_file, sizeof stop_file, "%s/stop", controller_tmpdir(controller, index));
	snprintf(report, sizeof report, "%s/report.json", controller_tmpdir(controller, index));
	plan_request.stop_file = stop && *stop ? stop : stop_file;
	plan_request.report = report;
	plan_request.plan_file = plan_file;
	plan_request.port = start->port;
	for (size_t i = 0; !rc && i < node->rank_count; i++) {
		struct env *changes = NULL;
		char *cpus = idset_format(node->ranks[i].cpus_os);

		rc = plan_environment(&start->plan, &start->inventories[index], index, i,
				      &plan_request, start->request->launch->env, &changes, err);
		if (!rc) {
			char heartbeat[256];

			heartbeat_path(controller_tmpdir(controller, index), (int)i, heartbeat,
				       sizeof heartbeat);
			rc = env_set(changes, HEARTBEAT_ENV, heartbeat, ENV_FROM_BERTH,
				     "where the rank tells its steps", err);
		}
		/* Open MPI names its shared memory by host and local rank: pretended nodes would
		 * write into each other's. */
		if (!rc && node_count(start) > 1 && start->request->launch->launcher->single_host)
			rc = env_set(changes, "OMPI_MCA_btl_vader_backing_directory",
				     controller_tmpdir(controller, index), ENV_FROM_BERTH,
				     "pretended nodes share /dev/shm", err);
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
		rc = controller_send(controller, MESSAGE_START, (uint32_t)index,
				     (uint32_t)start->plan.attempt, 0,
				     json_pack("{s:o, s:o}", "ranks", ranks, "plan",
					       plan_file_to_json(&start->plan, index)),
				     data.data, data.size, err);
	}
	bytes_free(&data);
	return rc;
}

int job_start_send(const struct job_start *start, struct controller *controller, struct error *err)
{
	int rc = send_job(start, controller, err);

	for (size_t i = 0; !rc && i < node_count(start); i++)
		rc = send_node(start, controller, i, err);
	return rc;
}

void job_start_notify_driver(const struct job_start *start, struct job *job)
{
	const struct job_driver *driver = start->request->driver;

	if (driver)
		driver->starting(driver->context, job, start->inventories, start->port);
}
