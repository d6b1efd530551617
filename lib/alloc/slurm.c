/* SPDX-License-Identifier: BSD-3-Clause */
/* Source "slurm": the variables that Slurm sets in a batch script, a step or an salloc.
 *
 * A process is in a step if SLURM_STEP_ID is set and is neither that of the batch script nor that
 * of the interactive shell which salloc may start on the first node. Those two stand for the whole
 * job, whatever their SLURM_STEP_NODELIST, SLURM_PROCID and SLURM_LOCALID. In a step the step's own
 * variables win. Sources: srun(1), sbatch(1), and environments captured from Slurm 22.05
 * (tests/unit/alloc). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/alloc.h"
#include "alloc/slurm.h"
#include "base/bytes.h"
#include "base/number.h"
#include "hostlist/hostlist.h"
#include "hostlist/idset.h"

#define MAX_PER_NODE (1 << 20)	      /* tasks or GPUs per node */
#define FIRST_SPECIAL_STEP 4294967280 /* batch, extern, interactive... count down from 2^32 - 1 */
#define LEAST_STEP (FIRST_SPECIAL_STEP - UINT32_MAX - 1) /* Slurm 26.05 writes them as -5... */

/* The state of reading, and the names of the variables that apply. */
struct slurm_reader {
	const struct env *env;
	bool in_step;
	const char *list_name, *tasks_name; /* SLURM_STEP_... or SLURM_JOB_... */
	int groups;			    /* of a heterogeneous job; else 0 */
	char *nodes, *tasks;		    /* of its groups, in the syntax of one */
	struct hosts hosts;		    /* of that list */
	struct alloc made;
};

/* The value of the first of two names that is set and not empty. *name: which; the second if none
 * is. */
static const char *first_set(const struct env *env, const char *first, const char *second,
			     const char **name)
{
	const char *value = alloc_env(env, first);

	*name = value ? first : second;
	return value ? value : alloc_env(env, second);
}

static const char *job_id(const struct env *env)
{
	const char *name;

	return first_set(env, "SLURM_JOB_ID", "SLURM_JOBID", &name);
}

static int slurm_present(const struct env *env, const struct alloc_request *request)
{
	(void)request;
	return job_id(env) != NULL;
}

bool slurm_in_step(const struct env *env)
{
	const char *name, *id = first_set(env, "SLURM_STEP_ID", "SLURM_STEPID", &name);
	int64_t number;

	return id && !number_int64("SLURM_STEP_ID", id, 0, UINT32_MAX, &number, NULL) &&
	       number < FIRST_SPECIAL_STEP;
}

/* ---- lists of counts: "2(x3),1" ---- */

static int counts_fault(const char *name, const char *text, const char *at, struct error *err)
{
	return error_set(
		err, ERR_DATA,
		"%s is '%.120s', expected counts such as 2(x3),1 (not understood from '%.20s' on)",
		name, text, at);
}

/* Read digits at *at, at most max, and advance. */
static int parse_number(const char **at, long max, long *out)
{
	long value = 0;
	const char *begin = *at;

	for (; **at >= '0' && **at <= '9'; ++*at) {
		value = value * 10 + (**at - '0');
		if (value > max)
			return -1;
	}
	*out = value;
	return *at > begin ? 0 : -1;
}

int slurm_counts(const char *name, const char *text, size_t count, int *out, size_t *described,
		 struct error *err)
{
	const char *at = text;
	size_t filled = 0;

	for (;;) {
		const char *item = at;
		long value, times = 1;

		if (parse_number(&at, MAX_PER_NODE, &value))
			return counts_fault(name, text, item, err);
		if (!strncmp(at, "(x", 2)) {
			at += 2;
			if (parse_number(&at, HOSTLIST_MAX_HOSTS, &times) || times < 1 ||
			    *at++ != ')')
				return counts_fault(name, text, item, err);
		}
		for (long i = 0; i < times; i++, filled++)
			if (filled < count)
				out[filled] = (int)value;
		if (!*at)
			break;
		if (*at++ != ',' || filled > HOSTLIST_MAX_HOSTS)
			return counts_fault(name, text, item, err);
	}
	*described = filled;
	return 0;
}

/* ---- nodes ---- */

/* Refuse a line break, which Slurm never sets: it would split the message that quotes the value. */
static int check_values(struct slurm_reader *r, struct error *err)
{
	static const char *const names[] = {"SLURM_JOB_ID",
					    "SLURM_JOBID",
					    "SLURM_STEP_ID",
					    "SLURM_STEPID",
					    "SLURM_JOB_NODELIST",
					    "SLURM_NODELIST",
					    "SLURM_STEP_NODELIST",
					    "SLURM_JOB_NUM_NODES",
					    "SLURM_NNODES",
					    "SLURM_STEP_NUM_NODES",
					    "SLURM_TASKS_PER_NODE",
					    "SLURM_STEP_TASKS_PER_NODE",
					    "SLURM_JOB_CPUS_PER_NODE",
					    "SLURM_STEP_NUM_TASKS",
					    "SLURMD_NODENAME",
					    "SLURM_HET_SIZE",
					    "SLURM_PACK_SIZE",
					    "SLURM_GPUS_PER_NODE",
					    "SLURM_GPUS_ON_NODE",
					    "SLURM_JOB_GPUS",
					    "SLURM_STEP_GPUS",
					    "SLURM_JOB_END_TIME",
					    "SLURM_RESTART_COUNT",
					    "SLURM_ARRAY_JOB_ID",
					    "SLURM_ARRAY_TASK_ID"};
	char shown[121];

	for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
		const char *value = env_get(r->env, names[i]), *at = value;

		while (at && *at && (unsigned char)*at >= ' ' && *at != 0x7f)
			at++;
		if (!at || !*at)
			continue;
		snprintf(shown, sizeof shown, "%s", value);
		for (char *c = shown; *c; c++)
			if ((unsigned char)*c < ' ' || *c == 0x7f)
				*c = '?';
		return error_set(err, ERR_DATA,
				 "%s has a line break or another control character (shown as ?), "
				 "which Slurm never sets: '%s'",
				 names[i], shown);
	}
	return 0;
}

/* A value that is not a number shows neither that this is a step nor that it is not. */
static int check_step(struct slurm_reader *r, struct error *err)
{
	const char *name, *id = first_set(r->env, "SLURM_STEP_ID", "SLURM_STEPID", &name);
	int64_t ignored;

	return id ? number_int64(name, id, LEAST_STEP, UINT32_MAX, &ignored, err) : 0;
}

/* ---- heterogeneous jobs ---- */

/* The variable of one group: "SLURM_JOB_NODELIST_HET_GROUP_0". */
static const char *of_group(const struct env *env, const char *base, int group, char *name,
			    size_t size)
{
	snprintf(name, size, "%s_HET_GROUP_%d", base, group);
	return alloc_env(env, name);
}

/* The values of all groups, separated by commas, as one group's list may be. */
static char *of_groups(const struct slurm_reader *r, const char *base, struct error *err)
{
	char *all = NULL, name[80];

	for (int group = 0; group < r->groups; group++) {
		const char *value = of_group(r->env, base, group, name, sizeof name);
		char *longer =
			value ? text_format("%s%s%s", all ? all : "", all ? "," : "", value) : NULL;

		free(all);
		all = longer;
		if (value && all && !strpbrk(value, "\n\r\t"))
			continue;
		if (!value)
			error_set(err, ERR_DATA,
				  "SLURM_HET_SIZE is %d, but %s is not set, although Slurm sets "
				  "it in a heterogeneous job",
				  r->groups, name);
		else if (all)
			error_set(err, ERR_DATA, "%s has a line break", name);
		else
			error_memory(err, "the allocation");
		free(all);
		return NULL;
	}
	return all;
}

static int number_groups(struct slurm_reader *r, struct error *err)
{
	size_t n = 0;
	char name[80];
	int rc = 0;

	r->made.groups = r->groups;
	for (int group = 0; !rc && group < r->groups; group++) {
		struct hosts hosts = {0};
		const char *list = of_group(r->env, "SLURM_JOB_NODELIST", group, name, sizeof name);

		rc = hostlist_expand(list, &hosts, err);
		for (size_t i = 0; i < hosts.count && n < r->made.node_count; i++)
			r->made.nodes[n++].group = group;
		hosts_free(&hosts);
	}
	return rc;
}

static int read_groups(struct slurm_reader *r, struct error *err)
{
	const char *name, *size = first_set(r->env, "SLURM_HET_SIZE", "SLURM_PACK_SIZE", &name);
	int components, rc;

	if (!size)
		return 0;
	rc = number_int(name, size, 1, MAX_PER_NODE, &components, err);
	if (rc || components == 1)
		return rc;
	if (slurm_in_step(r->env))
		return error_set(err, ERR_USAGE,
				 "%s is %d: a step of a heterogeneous job has ranks of several "
				 "groups, which do not know each other. Start berth run in the job "
				 "script, without srun.",
				 name, components);
	r->groups = components;
	r->nodes = of_groups(r, "SLURM_JOB_NODELIST", err);
	r->tasks = r->nodes ? of_groups(r, "SLURM_TASKS_PER_NODE", err) : NULL;
	return r->tasks ? 0 : -err->code;
}

static int check_same_id(struct slurm_reader *r, struct error *err)
{
	const char *id = env_get(r->env, "SLURM_JOB_ID"), *old = env_get(r->env, "SLURM_JOBID");

	if (!id || !*id || !old || !*old || !strcmp(id, old))
		return 0;
	return error_set(err, ERR_DATA,
			 "SLURM_JOB_ID is '%.40s', but SLURM_JOBID is '%.40s': they belong to two "
			 "jobs. Unset the one that is not this job's.",
			 id, old);
}

/* sbatch -m arbitrary: SLURM_HOSTFILE has one line per task. berth would place other ranks on the
 * nodes, or in another order. In a step srun has placed them. */
static int reject_arbitrary(struct slurm_reader *r, struct error *err)
{
	const char *how = alloc_env(r->env, "SLURM_DISTRIBUTION");
	const char *file = alloc_env(r->env, "SLURM_HOSTFILE");

	if (r->in_step || !how || !file || strncmp(how, "arbitrary", 9))
		return 0;
	return error_set(err, ERR_USAGE,
			 "SLURM_DISTRIBUTION is '%.40s' with SLURM_HOSTFILE '%.200s': berth places "
			 "ranks node by node. Start them with srun berth exec -- PROGRAM, or unset "
			 "SLURM_DISTRIBUTION.",
			 how, file);
}

/* Select the variables that apply, and read the nodes they name. */
static int read_nodes(struct slurm_reader *r, struct error *err)
{
	const char *list, *twice;
	int rc;

	r->in_step = slurm_in_step(r->env);
	if (r->in_step)
		list = alloc_env(r->env, r->list_name = "SLURM_STEP_NODELIST");
	else if (r->groups) {
		list = r->nodes;
		r->list_name = "SLURM_JOB_NODELIST_HET_GROUP_*";
	} else
		list = first_set(r->env, "SLURM_JOB_NODELIST", "SLURM_NODELIST", &r->list_name);
	if (!list)
		return error_set(
			err, ERR_DATA,
			"SLURM_JOB_ID is set (%.40s), but %s is not, although Slurm sets both in a "
			"job. Start berth in the job (sbatch, salloc), or unset SLURM_JOB_ID.",
			job_id(r->env), r->in_step ? "SLURM_STEP_NODELIST" : "SLURM_JOB_NODELIST");
	rc = hostlist_expand(list, &r->hosts, err);
	if (rc)
		return error_prefix(err, "%s", r->list_name);
	if (!r->hosts.count)
		return error_set(err, ERR_DATA, "%s lists no node", r->list_name);
	rc = hosts_duplicate(&r->hosts, &twice, err);
	if (rc || !twice)
		return rc;
	return error_set(err, ERR_DATA, "%s is '%.200s', which lists %s twice", r->list_name, list,
			 twice);
}

/* SLURM_NNODES and related variables must agree with the list. */
static int check_count(struct slurm_reader *r, struct error *err)
{
	const char *name = "SLURM_STEP_NUM_NODES";
	const char *text =
		r->in_step ? alloc_env(r->env, name)
			   : first_set(r->env, "SLURM_JOB_NUM_NODES", "SLURM_NNODES", &name);
	int count, rc;

	if (!text || r->groups)
		return 0;
	rc = number_int(name, text, 1, HOSTLIST_MAX_HOSTS, &count, err);
	if (rc || (size_t)count == r->hosts.count)
		return rc;
	return error_set(err, ERR_DATA, "%s is %d, but %s lists %zu node%s: '%.200s'", name, count,
			 r->list_name, r->hosts.count, r->hosts.count == 1 ? "" : "s",
			 env_get(r->env, r->list_name));
}

static int take_nodes(struct slurm_reader *r, struct error *err)
{
	int rc = alloc_set_nodes(&r->made, &r->hosts, false, err);

	return rc ? rc : number_groups(r, err);
}

/* Find the node this process is on, by Slurm's name for it (gethostname may differ). A login node
 * on which salloc left the user has none: nothing was granted there. */
static int find_this_node(struct slurm_reader *r, struct error *err)
{
	const char *name = env_get(r->env, "SLURMD_NODENAME");

	if (!name || !*name)
		return 0;
	for (size_t i = 0; i < r->made.node_count; i++)
		if (!strcmp(r->made.nodes[i].name, name))
			r->made.this_node = (int)i;
	if (r->made.this_node >= 0)
		return 0;
	return error_set(err, ERR_DATA,
			 "SLURMD_NODENAME is '%.80s', which %s does not list: '%.200s'. They "
			 "belong to different jobs; check whether the variables of another job "
			 "were exported into this one.",
			 name, r->list_name, r->nodes ? r->nodes : env_get(r->env, r->list_name));
}

/* ---- tasks ---- */

/* In a step the counts are those of its tasks, and the sum is known. */
static int check_tasks(const struct slurm_reader *r, const char *counts, struct error *err)
{
	const char *name = "SLURM_STEP_NUM_TASKS", *text = alloc_env(r->env, name);
	long sum = 0;
	int tasks, rc;

	if (!r->in_step || !text)
		return 0;
	rc = number_int(name, text, 1, INT32_MAX, &tasks, err);
	for (size_t i = 0; i < r->made.node_count; i++)
		sum += r->made.nodes[i].slots;
	if (rc || sum == tasks)
		return rc;
	return error_set(err, ERR_DATA, "%s is %d, but %s is '%.120s', which adds up to %ld", name,
			 tasks, r->tasks_name, counts, sum);
}

static int read_tasks(struct slurm_reader *r, struct error *err)
{
	size_t count = r->made.node_count, described = 0;
	const char *text = r->in_step
				   ? alloc_env(r->env, r->tasks_name = "SLURM_STEP_TASKS_PER_NODE")
				   : first_set(r->env, "SLURM_TASKS_PER_NODE",
					       "SLURM_JOB_CPUS_PER_NODE", &r->tasks_name);
	const char *step, *cpus;
	int *counts, rc;

	if (r->groups) {
		text = r->tasks;
		r->tasks_name = "SLURM_TASKS_PER_NODE_HET_GROUP_*";
	}
	if (!text)
		return 0;
	counts = calloc(count, sizeof *counts);
	if (!counts)
		return error_memory(err, "the allocation");
	rc = slurm_counts(r->tasks_name, text, count, counts, &described, err);
	/* A rank has those of its agent's step, which may be on fewer nodes than the job. */
	step = r->in_step ? NULL : alloc_env(r->env, "SLURM_STEP_TASKS_PER_NODE");
	cpus = alloc_env(r->env, "SLURM_JOB_CPUS_PER_NODE");
	if (!rc && described < count && step && cpus && !strcmp(step, text)) {
		r->tasks_name = "SLURM_JOB_CPUS_PER_NODE";
		rc = slurm_counts(r->tasks_name, text = cpus, count, counts, &described, err);
	}
	/* More counts than nodes are allowed: after a node was released, the counts stay. */
	if (!rc && described < count)
		rc = error_set(err, ERR_DATA,
			       "%s is '%.120s', which has counts for %zu node%s, but %s lists %zu",
			       r->tasks_name, text, described, described == 1 ? "" : "s",
			       r->list_name, count);
	for (size_t i = 0; !rc && i < count; i++)
		r->made.nodes[i].slots = counts[i];
	free(counts);
	return rc ? rc : check_tasks(r, text, err);
}

/* ---- GPUs ---- */

/* "4", "a100:4", "a100:2,v100:1": the sum. */
static int gpus_per_node(const char *name, const char *text, int *out, struct error *err)
{
	long sum = 0;
	const char *item = text;

	for (;;) {
		size_t size = strcspn(item, ",");
		const char *colon = memchr(item, ':', size), *at = colon ? colon + 1 : item;
		long value = 0;

		if (colon == item || parse_number(&at, MAX_PER_NODE, &value) || at != item + size)
			return error_set(err, ERR_DATA,
					 "%s is '%.120s', expected a number of GPUs such as 4, "
					 "a100:4 or a100:2,v100:1",
					 name, text);
		sum += value;
		if (sum > MAX_PER_NODE)
			return error_set(err, ERR_DATA, "%s is '%.120s': more than %d GPUs", name,
					 text, MAX_PER_NODE);
		if (!item[size])
			break;
		item += size + 1;
	}
	*out = (int)sum;
	return 0;
}

/* "0,1,2,3", "0-3": how many. */
static int gpus_in_list(const char *name, const char *text, int *out, struct error *err)
{
	struct idset *set = NULL;
	struct error inner;

	if (idset_parse(text, &set, &inner))
		return error_set(err, ERR_DATA, "%s is '%.120s', expected GPU numbers such as 0-3",
				 name, text);
	*out = (int)idset_count(set);
	idset_free(set);
	return 0;
}

static int read_gpus(struct slurm_reader *r, struct error *err)
{
	const char *each = r->groups ? NULL : alloc_env(r->env, "SLURM_GPUS_PER_NODE");
	const char *here = alloc_env(r->env, "SLURM_GPUS_ON_NODE");
	const char *name = "SLURM_JOB_GPUS";
	const char *list = r->in_step
				   ? first_set(r->env, "SLURM_STEP_GPUS", "SLURM_JOB_GPUS", &name)
				   : alloc_env(r->env, "SLURM_JOB_GPUS");
	int everywhere = -1, on_this = -1, rc = 0;

	if (each)
		rc = gpus_per_node("SLURM_GPUS_PER_NODE", each, &everywhere, err);
	if (!rc && here)
		rc = number_int("SLURM_GPUS_ON_NODE", here, 0, MAX_PER_NODE, &on_this, err);
	else if (!rc && list)
		rc = gpus_in_list(name, list, &on_this, err);
	/* On a node, a step may have fewer GPUs than the job, and an exclusive job more. */
	if (!rc && everywhere >= 0 && on_this >= 0 && on_this != everywhere)
		everywhere = -1;
	for (size_t i = 0; !rc && i < r->made.node_count; i++)
		r->made.nodes[i].gpus =
			(int)i == r->made.this_node && on_this >= 0 ? on_this : everywhere;
	return rc;
}

/* ---- the job ---- */

static int read_times(struct slurm_reader *r, struct error *err)
{
	const char *end = alloc_env(r->env, "SLURM_JOB_END_TIME");
	const char *restarts = alloc_env(r->env, "SLURM_RESTART_COUNT");
	int rc = 0;

	if (end)
		rc = number_int64("SLURM_JOB_END_TIME", end, 0, ALLOC_END_MAX, &r->made.end_time,
				  err);
	if (!rc && r->made.end_time)
		r->made.end_reason = strdup("SLURM_JOB_END_TIME");
	if (!rc && r->made.end_time && !r->made.end_reason)
		return error_memory(err, "the allocation");
	if (!rc && restarts)
		rc = number_int("SLURM_RESTART_COUNT", restarts, 0, 1 << 20, &r->made.restarts,
				err);
	return rc;
}

/* "1234_7": the form that scontrol requeue expects for an array task. */
static int read_array(struct slurm_reader *r, struct error *err)
{
	const char *job = alloc_env(r->env, "SLURM_ARRAY_JOB_ID");
	const char *task = alloc_env(r->env, "SLURM_ARRAY_TASK_ID");
	int64_t ignored;
	int rc;

	if (!job && !task)
		return 0;
	if (!job || !task)
		return error_set(err, ERR_DATA, "%s is '%.40s', but %s is not set; Slurm sets both",
				 job ? "SLURM_ARRAY_JOB_ID" : "SLURM_ARRAY_TASK_ID",
				 job ? job : task,
				 job ? "SLURM_ARRAY_TASK_ID" : "SLURM_ARRAY_JOB_ID");
	rc = number_int64("SLURM_ARRAY_JOB_ID", job, 1, UINT32_MAX, &ignored, err);
	if (!rc)
		rc = number_int64("SLURM_ARRAY_TASK_ID", task, 0, UINT32_MAX, &ignored, err);
	if (!rc && !(r->made.array_task = text_format("%s_%s", job, task)))
		rc = error_memory(err, "the allocation");
	return rc;
}

static int set_job_id(struct slurm_reader *r, struct error *err)
{
	int64_t id;
	int rc = number_int64("SLURM_JOB_ID", job_id(r->env), 1, UINT32_MAX, &id, err);

	if (rc)
		return rc;
	r->made.job_id = strdup(job_id(r->env));
	r->made.why = text_format("SLURM_JOB_ID is set; the nodes come from %s%s", r->list_name,
				  r->in_step		  ? " (a job step)"
				  : r->made.this_node < 0 ? ", and this machine is not one of them"
							  : "");
	return r->made.job_id && r->made.why ? 0 : error_memory(err, "the allocation");
}

static int read_slurm(const struct env *env, const struct alloc_request *request, struct alloc *out,
		      struct error *err)
{
	static int (*const steps[])(struct slurm_reader *, struct error *) = {
		check_values,	  check_step,  read_groups, check_same_id,  read_nodes,
		reject_arbitrary, check_count, take_nodes,  find_this_node, read_tasks,
		read_gpus,	  read_times,  read_array,  set_job_id};
	struct slurm_reader r = {.env = env, .made = *out};
	int rc = 0;

	(void)request;
	for (size_t i = 0; !rc && i < sizeof steps / sizeof *steps; i++)
		rc = steps[i](&r, err);
	hosts_free(&r.hosts);
	free(r.nodes);
	free(r.tasks);
	*out = r.made;
	return rc;
}

const struct alloc_source alloc_source_slurm = {ALLOC_FROM_SLURM, slurm_present, read_slurm};
