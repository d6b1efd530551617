/* SPDX-License-Identifier: BSD-3-Clause */
/* Source "openpai": a container of an OpenPAI job. Every container of a task role runs the same
 * command, and nothing starts agents for berth. The nodes are the tasks of this container's role;
 * the first node is its task 0. Its port is one that the job's YAML requests (portList), preferably
 * under the label "berth". Source: OpenPAI's manual, "how to use advanced job settings"; variables
 * under both of their names. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/alloc.h"
#include "base/bytes.h"
#include "base/number.h"
#include "hostlist/hostlist.h"

#define TASKS_MAX 100000
#define ROLE_MAX 64

/* The value of NAME_ROLE or NAME_ROLE_INDEX if it is not empty, else NULL. name receives the
 * variable's name. */
static const char *of_task(const struct env *env, const char *format, const char *role, int index,
			   char name[160])
{
	if (index < 0)
		snprintf(name, 160, "%s_%s", format, role);
	else
		snprintf(name, 160, "%s_%s_%d", format, role, index);
	return alloc_env(env, name);
}

static const char *role_of(const struct env *env)
{
	return alloc_env(env, "PAI_CURRENT_TASK_ROLE_NAME");
}

static const char *index_of(const struct env *env, const char **name)
{
	const char *value = alloc_env(env, *name = "PAI_CURRENT_TASK_ROLE_CURRENT_TASK_INDEX");

	return value ? value : alloc_env(env, *name = "PAI_TASK_INDEX");
}

static int openpai_present(const struct env *env, const struct alloc_request *request)
{
	const char *name;

	(void)request;
	return role_of(env) && index_of(env, &name);
}

static int check_role(const char *role, struct error *err)
{
	size_t size = strlen(role);

	if (size <= ROLE_MAX &&
	    !role[strspn(role, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-")])
		return 0;
	return error_set(
		err, ERR_DATA,
		"PAI_CURRENT_TASK_ROLE_NAME is '%.80s', expected letters, digits and _, at most %d",
		role, ROLE_MAX);
}

/* PAI_TASK_ROLE_TASK_COUNT_<role>, or PAI_CURRENT_TASK_ROLE_TASK_COUNT. */
static int read_count(const struct env *env, const char *role, int *out, struct error *err)
{
	char name[160];
	const char *text = of_task(env, "PAI_TASK_ROLE_TASK_COUNT", role, -1, name);

	if (!text) {
		text = alloc_env(env, "PAI_CURRENT_TASK_ROLE_TASK_COUNT");
		if (!text)
			return error_set(err, ERR_DATA,
					 "%s is not set, but OpenPAI sets it in every container; "
					 "start berth in the job's command",
					 name);
		snprintf(name, sizeof name, "PAI_CURRENT_TASK_ROLE_TASK_COUNT");
	}
	return number_int(name, text, 1, TASKS_MAX, out, err);
}

static int bad_address(const char *name, const char *text, struct error *err)
{
	if (!text)
		return error_set(err, ERR_DATA,
				 "%s is not set; it should hold the address of a task of this role",
				 name);
	if (strlen(text) <= HOSTLIST_MAX_NAME && *text != '-' &&
	    !text[strspn(text,
			 "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.:_-")])
		return 0;
	return error_set(err, ERR_DATA, "%s is '%.80s', expected an address", name, text);
}

/* "4,16,32768,1024": GPUs first. */
static int read_gpus(const struct env *env, const char *role, int *out, struct error *err)
{
	char name[160], first[16];
	const char *text = of_task(env, "PAI_RESOURCE", role, -1, name);
	size_t size = text ? strcspn(text, ",") : 0;

	*out = -1;
	if (!text)
		return 0;
	snprintf(first, sizeof first, "%.*s", (int)size, text);
	if (size >= sizeof first || number_int(name, first, 0, 1024, out, NULL))
		return error_set(
			err, ERR_DATA,
			"%s is '%.80s', expected GPUs, CPUs and memory such as 4,16,32768,1024",
			name, text);
	return 0;
}

static int read_nodes(const struct env *env, const char *role, int count, struct alloc *made,
		      struct error *err)
{
	int gpus, rc = read_gpus(env, role, &gpus, err);

	made->nodes = rc ? NULL : calloc((size_t)count, sizeof *made->nodes);
	if (!rc && !made->nodes)
		return error_memory(err, "the allocation");
	for (int i = 0; !rc && i < count; i++) {
		char name[160];
		const char *address = of_task(env, "PAI_HOST_IP", role, i, name);

		rc = bad_address(name, address, err);
		/* Two containers may be on one machine: the index keeps them apart. */
		if (!rc && !(made->nodes[i].name = text_format("%s-%d", role, i)))
			rc = error_memory(err, "the allocation");
		if (rc)
			break;
		made->nodes[i].gpus = gpus;
		made->node_count++;
	}
	return rc;
}

/* Find a port of task 0: the one labelled "berth", or the first that is not ssh's. Variables are
 * "PAI_worker_0_berth_PORT" and "PAI_PORT_LIST_worker_0_berth" (the first of a list). name receives
 * the variable's name. */
static const char *find_port(const struct env *env, const char *role, char name[160])
{
	static const char ending[] = "_PORT";
	char begins[2][160];
	const char *found = NULL;

	snprintf(begins[0], sizeof begins[0], "PAI_%s_0_", role);
	snprintf(begins[1], sizeof begins[1], "PAI_PORT_LIST_%s_0_", role);
	for (size_t i = 0; i < env_count(env); i++) {
		const struct env_var *var = env_at(env, i);
		size_t size = strlen(var->name), tail = sizeof ending - 1;

		for (int k = 0; k < 2; k++) {
			size_t begin = strlen(begins[k]);
			const char *label = var->name + begin;
			size_t length = size - begin - (k ? 0 : tail);

			if (!var->value || !*var->value || size >= 160 ||
			    size <= begin + (k ? 0 : tail) ||
			    strncmp(var->name, begins[k], begin) ||
			    (!k && strcmp(var->name + size - tail, ending)) ||
			    (length == 3 && !strncmp(label, "ssh", 3)))
				continue;
			bool best = length == 5 && !strncmp(label, "berth", 5);

			if (!found || best) {
				found = var->value;
				strcpy(name, var->name);
			}
			if (best)
				return found;
		}
	}
	return found;
}

static int read_rendezvous(const struct env *env, const char *role, struct alloc *made,
			   struct error *err)
{
	char name[160], port_name[160], first[16];
	const char *address = of_task(env, "PAI_HOST_IP", role, 0, name);
	const char *port = find_port(env, role, port_name);
	int number, rc;

	if (!port)
		return error_set(err, ERR_DATA,
				 "the task role %.64s has %zu tasks but no port for the rendezvous "
				 "with its task 0. Add to the job's YAML under the role: "
				 "resourcePerInstance: ports: {berth: 1}",
				 role, made->node_count);
	snprintf(first, sizeof first, "%.*s", (int)strcspn(port, ","), port);
	rc = number_int(port_name, first, 1, 65535, &number, err);
	if (rc)
		return rc;
	if (!(made->rendezvous =
		      text_format(strchr(address, ':') ? "[%s]:%d" : "%s:%d", address, number)))
		return error_memory(err, "the allocation");
	return 0;
}

static int set_job_id(const struct env *env, const char *role, struct alloc *made,
		      struct error *err)
{
	const char *job = alloc_env(env, "PAI_JOB_NAME");

	made->job_id = strdup(job ? job : "openpai");
	made->why = text_format("PAI_CURRENT_TASK_ROLE_NAME is %s; this container is its task %d",
				role, made->this_node);
	return made->job_id && made->why ? 0 : error_memory(err, "the allocation");
}

static int read_openpai(const struct env *env, const struct alloc_request *request,
			struct alloc *out, struct error *err)
{
	const char *role = role_of(env), *index_name, *index = index_of(env, &index_name);
	int count = 0, rc = check_role(role, err);

	(void)request;
	if (!rc)
		rc = read_count(env, role, &count, err);
	if (!rc)
		rc = number_int(index_name, index, 0, count - 1, &out->this_node, err);
	if (!rc)
		rc = read_nodes(env, role, count, out, err);
	if (!rc && count > 1)
		rc = read_rendezvous(env, role, out, err);
	if (!rc)
		rc = set_job_id(env, role, out, err);
	return rc;
}

const struct alloc_source alloc_source_openpai = {ALLOC_FROM_OPENPAI, openpai_present,
						  read_openpai};
