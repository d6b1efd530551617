/* SPDX-License-Identifier: BSD-3-Clause */
#include "agent/job_state.h"

#include <stdlib.h>
#include <string.h>

#include "base/json.h"

/* Read a list with one number per node; *out is malloced. */
static int read_ints(const struct agent_job *job, const char *key, const json_t *values,
		     const int **out, struct error *err)
{
	size_t count = (size_t)job->layout.node_count;
	int *list = calloc(count, sizeof *list);
	int rc = list ? 0 : error_memory(err, "the job's nodes");

	if (!rc && json_array_size(values) != count)
		rc = error_set(err, ERR_DATA, "JOB: %s has %zu entries, but the job has %zu nodes",
			       key, json_array_size(values), count);
	for (size_t i = 0; !rc && i < count; i++) {
		json_int_t value = json_integer_value(json_array_get(values, i));

		if (value < 0 || value > INT32_MAX)
			rc = error_set(err, ERR_DATA, "JOB: %s is out of range", key);
		list[i] = (int)value;
	}
	if (rc)
		free(list);
	else
		*out = list;
	return rc;
}

void agent_job_free(struct agent_job *job)
{
	free((void *)job->layout.nodes);
	free((void *)job->layout.first_rank);
	free((void *)job->layout.rank_count);
	free(job->argv);
	free(job->base);
	free(job->cwd);
	bytes_free(&job->data);
	container_free(&job->container);
	json_decref(job->document);
	memset(job, 0, sizeof *job);
}

static int read_nodes(struct agent_job *job, const struct message_job *from, struct error *err)
{
	size_t count = (size_t)job->layout.node_count;
	const char **nodes;
	int rc;

	if (json_array_size(from->names) != count)
		return error_set(err, ERR_DATA, "JOB names %zu nodes; expected %zu",
				 json_array_size(from->names), count);
	job->layout.nodes = nodes = calloc(count, sizeof *nodes);
	if (!nodes)
		return error_memory(err, "the job's nodes");
	for (size_t i = 0; i < count; i++) {
		nodes[i] = json_string_value(json_array_get(from->names, i));
		if (!nodes[i])
			return error_set(err, ERR_DATA, "JOB: a node's name is not a string");
	}
	rc = read_ints(job, "first", from->first, &job->layout.first_rank, err);
	return rc ? rc : read_ints(job, "counts", from->counts, &job->layout.rank_count, err);
}

static int read_strings(struct agent_job *job, const struct wire_message *message,
			struct error *err)
{
	size_t left = message->data_size, count;
	const unsigned char *at;
	int rc;

	if (bytes_add(&job->data, message->data, left))
		return error_memory(err, "the program's arguments");
	at = job->data.data;
	rc = bytes_next_strings(&at, &left, &job->argv, &count, err);
	if (!rc && !count)
		rc = error_set(err, ERR_DATA, "JOB names no program");
	if (!rc)
		rc = bytes_next_strings(&at, &left, &job->base, &job->base_count, err);
	if (!rc)
		rc = bytes_next_strings(&at, &left, &job->cwd, &count, err);
	return rc;
}

int agent_job_read(const struct message *message, struct agent_job *job, struct error *err)
{
	const struct message_job *from = &message->job;

	job->document = json_incref(message->document);
	if (from->input > AGENT_JOB_STDIN_ALL)
		return error_set(err, ERR_DATA, "JOB: input is %d; expected at most %d",
				 from->input, AGENT_JOB_STDIN_ALL);
	if (read_nodes(job, from, err) || read_strings(job, message->wire, err))
		return -err->code;
	limits_from_json(from->limits, &job->limits);
	if (from->container && container_from_json(from->container, &job->container, err))
		return -err->code;
	job->log_dir = from->log_dir;
	job->stop_file = from->stop_file && *from->stop_file ? from->stop_file : NULL;
	job->attempt = message->wire->attempt;
	job->layout.world_size = from->world_size;
	job->hold_port = from->hold_port;
	job->service = from->service;
	job->placeholders = from->placeholders;
	job->input = (enum agent_job_stdin)from->input;
	job->pmix_disabled = !strcmp(from->pmix, "off");
	job->pmix_required = !strcmp(from->pmix, "on");
	return 0;
}

size_t agent_job_rank_count(const struct agent_job *job)
{
	return (size_t)job->layout.rank_count[job->layout.node_index];
}

int agent_job_rank(const struct agent_job *job, size_t local_rank)
{
	return job->layout.first_rank[job->layout.node_index] + (int)local_rank;
}

int agent_job_environment(const struct agent_job *job, struct env **out, struct error *err)
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
