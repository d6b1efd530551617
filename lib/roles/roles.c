/* SPDX-License-Identifier: BSD-3-Clause */
#include "roles/roles.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "base/bytes.h"
#include "process/placeholders.h"
#include "inventory/inventory.h"

/* What one role's job borrows. */
struct roles_one {
	const struct role *role;
	struct job_role job_role;
	struct alloc alloc; /* its nodes; only the array is its own */
	struct launch_options launch;
	struct env *env; /* of launch: the job's and the role's variables */
	struct job_request request;
	size_t *nodes;		     /* of each of its nodes, the index in the job's allocation */
	json_t *others;		     /* of job_role */
	char *log_dir;		     /* DIR/ROLE, or NULL */
	char *cwd;		     /* of the request, from a relative --chdir; or NULL */
	struct plan_network network; /* of job_role; address "": not known yet */
};

struct roles_set {
	struct jobs_request jobs;
	struct role_rule rules[ROLES_MAX];
	struct jobs_entry *entries;
	size_t count;
	struct roles_one ones[];
};

/* ---- what every role learns of the others ---- */

/* address: of its first node; names, urls: of its nodes, separated by commas. */
static int add_role(struct env *env, const struct role *role, const struct job *job,
		    const char *address, const char *names, const char *urls, struct error *err)
{
	char port[16], size[16], ports[32], replicas[16], variable[80];
	const struct {
		const char *what, *value, *why;
	} variables[] = {
		{"ADDR", address, "of its first node"},
		{"PORT", port, "reserved there"},
		{"NODES", names, "in the order of its ranks"},
		{"URLS", urls, "of its nodes, with the port of --ready"},
		{"WORLD_SIZE", size, "its ranks"},
		{"PORTS", ports, "reserved on its nodes"},
		{"REPLICAS", replicas, "how many it has"},
	};
	int rc = 0;

	snprintf(port, sizeof port, "%d", job_plan(job)->port);
	snprintf(size, sizeof size, "%d", job_plan(job)->world_size);
	job_ports(job, ports, sizeof ports);
	snprintf(replicas, sizeof replicas, role->replicas ? "%d" : "", role->replicas);
	for (size_t i = 0; !rc && i < sizeof variables / sizeof *variables; i++) {
		if (!*variables[i].value)
			continue; /* without --ports, or --replicas */
		placeholder_variable(variables[i].value == replicas ? role->base : role->name,
				     variables[i].what, variable, sizeof variable);
		rc = env_set(env, variable, variables[i].value, ENV_FROM_BERTH, variables[i].why,
			     err);
	}
	return rc;
}

static const json_t *on_others(void *context, struct job *const *jobs, size_t i)
{
	struct roles_set *set = context;
	json_t *list = json_array();

	for (size_t k = 0; k < set->count; k++)
		if (k != i && set->jobs.node_count > 1) {
			json_t *more = job_addresses(jobs[k]);

			json_array_extend(list, more);
			json_decref(more);
		}
	json_decref(set->ones[i].others);
	set->ones[i].others = list;
	return list;
}

/* Where among job k's others do the addresses of job i begin? */
static size_t offset_of(const struct roles_set *set, struct job *const *jobs, size_t k, size_t i)
{
	size_t sum = 0;

	for (size_t m = 0; m < i; m++)
		if (m != k)
			sum += job_inventories(jobs[m])[0].address_count;
	return sum;
}

/* The address at which all nodes of the job reach the first node of role i, chosen as if all nodes
 * were the role's. */
static int find_address(const struct roles_set *set, struct job *const *jobs, size_t i,
			struct plan_network *out, struct error *err)
{
	struct plan_request request = job_plan_request(jobs[i]);
	size_t most = set->jobs.node_count, count = 0, addresses;
	struct inventory *all = calloc(most, sizeof *all);
	bool *seen = calloc(most, sizeof *seen);
	const struct inventory *theirs;
	struct plan_reach reach = {0};
	int *reached, *none, rc;

	addresses = job_inventories(jobs[i])[0].address_count;
	reached = calloc(addresses + 1, sizeof *reached);
	none = calloc(addresses + 1, sizeof *none);
	if (!all || !seen || !reached || !none) {
		rc = error_memory(err, "the address of a role");
		goto out;
	}
	for (size_t k = 0; k < set->count; k++) {
		const struct roles_one *one = &set->ones[(i + k) % set->count];

		theirs = job_inventories(jobs[(i + k) % set->count]);
		/* Without a plan it has failed, which --need allows. */
		for (size_t n = 0;
		     job_plan(jobs[(i + k) % set->count]) && n < one->alloc.node_count; n++)
			if (!seen[one->nodes[n]]) {
				seen[one->nodes[n]] = true;
				all[count++] = theirs[n];
			}
	}
	for (size_t a = 0; a < addresses; a++) {
		none[a] = -1;
		reached[a] = (int)count;
		for (size_t k = 0; k < set->count; k++)
			if (k != i && job_plan(jobs[k]))
				reached[a] -= (int)set->ones[k].alloc.node_count -
					      job_reached(jobs[k], offset_of(set, jobs, k, i) + a);
		reached[a] = reached[a] > 0 ? reached[a] : 0;
	}
	reach = (struct plan_reach){addresses, reached, none, none};
	rc = plan_network(all, count, &request, count > 1 ? &reach : NULL, out, err);
out:
	free(all);
	free(seen);
	free(reached);
	free(none);
	return rc;
}

/* The names of the nodes that have ranks, or with a network the URLs there, separated by commas;
 * malloced, or NULL. */
static char *join_nodes(const struct job *job, const struct alloc *alloc,
			const struct plan_network *network)
{
	const struct plan *plan = job_plan(job);
	int port = job_ready_port(job) ? job_ready_port(job) : plan->port;
	struct words list = {0};
	char address[64];

	for (size_t n = 0; n < plan->node_count; n++) {
		if (!plan->nodes[n].rank_count)
			continue;
		if (network)
			plan_node_address(&job_inventories(job)[n], network, address,
					  sizeof address);
		if (network)
			words_add(&list, strchr(address, ':') ? "http://[%s]:%d" : "http://%s:%d",
				  address, port);
		else
			words_add(&list, "%s", alloc->nodes[n].name);
	}
	return words_join(&list, ',');
}

/* Clients of HTTP ask the proxy for the nodes, too, unless these are excepted. */
static int except_from_proxy(struct roles_set *set, struct job *const *jobs, struct error *err)
{
	static const char *const proxies[] = {"http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"};
	struct words words = {0};
	bool needed = false;
	char *list;
	int rc;

	for (size_t i = 0; i < set->count; i++)
		for (size_t n = 0; job_plan(jobs[i]) && n < set->ones[i].alloc.node_count; n++) {
			char address[64];

			plan_node_address(&job_inventories(jobs[i])[n], &set->ones[i].network,
					  address, sizeof address);
			words_add(&words, "%s", address);
		}
	list = words_join(&words, ',');
	rc = list ? 0 : error_memory(err, "NO_PROXY");
	for (size_t i = 0; !rc && i < set->count; i++) {
		struct env *env = set->ones[i].env;
		const char *given = env_get(env, "no_proxy");
		bool proxy = false;
		char *longer;

		for (size_t k = 0; k < sizeof proxies / sizeof *proxies; k++)
			proxy |= env_get(env, proxies[k]) && *env_get(env, proxies[k]);
		given = given ? given : env_get(env, "NO_PROXY");
		if (!proxy || (given && strchr(given, '*')))
			continue;
		needed = true;
		longer = given && *given ? text_format("%s,%s", given, list) : strdup(list);
		rc = longer ? env_set(env, "no_proxy", longer, ENV_FROM_BERTH,
				      "with the roles' addresses", err)
			    : error_memory(err, "NO_PROXY");
		if (!rc)
			rc = env_set(env, "NO_PROXY", longer, ENV_FROM_BERTH,
				     "with the roles' addresses", err);
		free(longer);
	}
	if (needed && !rc)
		job_note(set->entries[0].sink, LOG_NOTE,
			 "http_proxy is set, so NO_PROXY has the roles' addresses, too: %s", list);
	free(list);
	return rc;
}

static int on_prepared(void *context, struct job *const *jobs, struct error *err)
{
	struct roles_set *set = context;
	int rc = 0;

	for (size_t i = 0; !rc && i < set->count; i++) {
		struct roles_one *one = &set->ones[i];
		char *names = NULL, *urls = NULL, ports[32];

		if (!job_plan(jobs[i]))
			continue;
		plan_network_free(&one->network);
		rc = find_address(set, jobs, i, &one->network, err);
		one->job_role.network = &one->network;
		names = rc ? NULL : join_nodes(jobs[i], &one->alloc, NULL);
		urls = rc ? NULL : join_nodes(jobs[i], &one->alloc, &one->network);
		if (!rc && !(names && urls))
			rc = error_memory(err, "the roles' nodes");
		if (rc)
			error_prefix(err, "role %s", one->role->name);
		job_ports(jobs[i], ports, sizeof ports);
		/* For the command of --ready; the ranks have it without roles, too. */
		if (!rc && *ports)
			rc = env_set(one->env, "BERTH_PORTS", ports, ENV_FROM_BERTH,
				     "reserved on its nodes", err);
		for (size_t k = 0; !rc && k < set->count; k++)
			rc = add_role(set->ones[k].env, one->role, jobs[i], one->network.address,
				      names, urls, err);
		free(names);
		free(urls);
	}
	return rc ? rc : except_from_proxy(set, jobs, err);
}

/* ---- the requests ---- */

static struct plan_request plan_of(const struct role *role, const struct plan_request *base,
				   bool shared)
{
	struct plan_request plan = *base;

	plan.ranks = role->ranks;
	plan.ranks_per_node = role->ranks_per_node;
	plan.per_node = role->per_node;
	plan.gpus_per_rank = role->gpus_per_rank > 0 ? role->gpus_per_rank : 0;
	plan.no_gpus = !role->gpus_per_rank;
	plan.part = shared;
	plan.sizes = NULL;
	plan.rest = shared && !plan.no_gpus && !plan.ranks && !plan.ranks_per_node;
	if (plan.no_gpus && !plan.ranks && !plan.ranks_per_node && !plan.per_node)
		plan.ranks_per_node = 1;
	return plan;
}

static int fill(struct roles_one *one, const struct job_request *base, const bool *uses,
		bool shared, const char *secret, struct error *err)
{
	const struct alloc *all = base->launch->alloc;
	const struct role *role = one->role;
	int rc;

	one->job_role = (struct job_role){.name = role->name,
					  .service = role->service,
					  .overlap = role->overlap,
					  .ready = role->ready.text ? &role->ready : NULL};
	one->alloc = *all;
	one->alloc.node_count = 0;
	one->alloc.this_node = -1;
	one->alloc.nodes = calloc(all->node_count, sizeof *one->alloc.nodes);
	one->nodes = calloc(all->node_count, sizeof *one->nodes);
	one->env = env_copy(base->launch->env);
	if (!one->alloc.nodes || !one->nodes || !one->env)
		return error_memory(err, "a role");
	for (size_t n = 0; n < all->node_count; n++) {
		size_t at = one->alloc.node_count;

		if (!uses[n])
			continue;
		if ((int)n == all->this_node)
			one->alloc.this_node = (int)at;
		one->nodes[at] = n;
		one->alloc.nodes[at] = all->nodes[n];
		one->alloc.node_count++;
	}
	one->launch = *base->launch;
	one->launch.alloc = &one->alloc;
	one->launch.env = one->env;
	one->launch.role = role->name;
	one->launch.ports = role->ports;
	one->request = *base;
	one->request.launch = &one->launch;
	one->request.argv = role->argv;
	if (role->container.image)
		one->request.container = role->container;
	one->request.cwd = role->chdir ? role->chdir : base->cwd;
	if (role->chdir && *role->chdir != '/' && base->cwd) {
		one->request.cwd = one->cwd = text_format("%s/%s", base->cwd, role->chdir);
		if (!one->cwd)
			return error_memory(err, "a role's directory");
	}
	one->request.plan = plan_of(role, &base->plan, shared);
	one->request.role = &one->job_role;
	if (base->log_dir)
		one->log_dir = text_format("%s/%s", base->log_dir, role->name);
	one->request.log_dir = one->log_dir;
	if (role->service)
		one->request.calls.stop_report = NULL;
	rc = env_set(one->env, "BERTH_ROLE", role->name, ENV_FROM_BERTH, "of this rank", err);
	if (!rc && role->replicas)
		rc = env_setf(one->env, "BERTH_REPLICA", ENV_FROM_BERTH, "of this rank's role", err,
			      "%d", role->replica);
	if (!rc && role->replicas)
		rc = env_setf(one->env, "BERTH_REPLICAS", ENV_FROM_BERTH, "of this rank's role",
			      err, "%d", role->replicas);
	if (!rc)
		rc = env_set(one->env, "BERTH_ROLE_SECRET", secret, ENV_FROM_BERTH,
			     "of this attempt's roles", err);
	return rc ? rc : env_set_texts(one->env, role->env, role->env_count, err);
}

/* What only one of several jobs may have: the scheduler's query, standard input. */
static void leave_to_first(struct roles_set *set, const struct job_request *base)
{
	bool input = base->pass_stdin;

	for (size_t i = 0; i < set->count; i++) {
		struct job_request *request = &set->ones[i].request;

		set->ones[i].job_role.quiet = i > 0;
		if (i)
			request->calls.query = NULL;
		request->pass_stdin = input && !set->ones[i].role->service;
		request->pty &= request->pass_stdin;
		input &= !request->pass_stdin;
	}
}

int roles_open(const struct role *roles, size_t count, const struct job_request *base,
	       const struct job_sink *sinks, int *restarted, struct roles_set **out,
	       struct error *err)
{
	size_t nodes = base->launch->alloc->node_count;
	struct roles_set *set = calloc(1, sizeof *set + count * sizeof set->ones[0]);
	bool *uses = calloc(count * nodes, sizeof *uses), *shared = calloc(count, sizeof *shared);
	unsigned long long random[2];
	char secret[33];
	int rc = 0;

	if (getrandom(random, sizeof random, 0) != sizeof random)
		rc = error_set(err, ERR_UNAVAILABLE, "no random numbers: %m");
	snprintf(secret, sizeof secret, "%016llx%016llx", random[0], random[1]);
	if (set)
		set->entries = calloc(count, sizeof *set->entries);
	if (!rc && (!set || !uses || !shared || !set->entries))
		rc = error_memory(err, "the roles");
	if (!rc)
		rc = roles_rules(roles, count, set->rules, err);
	if (!rc)
		rc = roles_assign(roles, count, base->launch->alloc, uses, shared, err);
	for (size_t i = 0; !rc && i < count; i++) {
		set->count = i + 1;
		set->ones[i].role = &roles[i];
		rc = fill(&set->ones[i], base, uses + i * nodes, shared[i], secret, err);
	}
	free(uses);
	free(shared);
	if (rc) {
		roles_close(set);
		return rc;
	}
	leave_to_first(set, base);
	for (size_t i = 0; i < count; i++) {
		set->ones[i].request.plan.attempt += restarted[i];
		set->entries[i] = (struct jobs_entry){
			.request = &set->ones[i].request,
			.sink = &sinks[i],
			.role = &set->ones[i].job_role,
			.restarts = roles[i].restart ? base->plan.max_restarts : 0,
			.nodes = set->ones[i].nodes};
	}
	set->jobs = (struct jobs_request){.entries = set->entries,
					  .rules = set->rules,
					  .count = count,
					  .node_count = nodes,
					  .others = on_others,
					  .prepared = on_prepared,
					  .context = set,
					  .restarted = restarted};
	*out = set;
	return 0;
}

const struct jobs_request *roles_jobs(const struct roles_set *set)
{
	return &set->jobs;
}

void roles_close(struct roles_set *set)
{
	for (size_t i = 0; set && i < set->count; i++) {
		free(set->ones[i].alloc.nodes);
		free(set->ones[i].nodes);
		json_decref(set->ones[i].others);
		plan_network_free(&set->ones[i].network);
		free(set->ones[i].log_dir);
		free(set->ones[i].cwd);
		env_free(set->ones[i].env);
	}
	free(set ? set->entries : NULL);
	free(set);
}
