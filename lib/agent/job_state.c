/* SPDX-License-Identifier: BSD-3-Clause */
/* JOB: what the head says to all agents of the ranks to come. See ranks.c. */
#include <stdlib.h>
#include <string.h>

#include "agent/agent_internal.h"
#include "base/json.h"

static int read_ints(const json_t *text, const char *key, int *out, size_t count, struct error *err)
{
	json_t *list;
	int rc = json_get_array("JOB", text, key, &list, err);

	if (!rc && json_array_size(list) != count)
		rc = error_set(err, ERR_DATA, "JOB: %s has %zu entries, the job %zu nodes", key,
			       json_array_size(list), count);
	for (size_t i = 0; !rc && i < count; i++) {
		json_int_t value = json_integer_value(json_array_get(list, i));

		if (value < 0 || value > INT32_MAX)
			rc = error_set(err, ERR_DATA, "JOB: %s is out of range", key);
		out[i] = (int)value;
	}
	return rc;
}

void agent_job_free(struct agent_job *job)
{
	free(job->names);
	free(job->first_rank);
	free(job->rank_count);
	free(job->argv);
	free(job->base);
	free(job->cwd);
	free(job->block);
	free(job->log_dir);
	free(job->stop_file);
	json_decref(job->text);
	memset(job, 0, sizeof *job);
}

static int read_nodes(struct agent_job *job, size_t expected, struct error *err)
{
	json_t *names;
	int rc = json_get_array("JOB", job->text, "names", &names, err);

	if (rc)
		return rc;
	if (json_array_size(names) != expected)
		return error_set(err, ERR_DATA, "JOB names %zu nodes of %zu",
				 json_array_size(names), expected);
	job->node_count = expected;
	job->names = calloc(expected, sizeof *job->names);
	job->first_rank = calloc(expected, sizeof *job->first_rank);
	job->rank_count = calloc(expected, sizeof *job->rank_count);
	if (!job->names || !job->first_rank || !job->rank_count)
		return error_memory(err, "the job's nodes");
	for (size_t i = 0; i < expected; i++) {
		job->names[i] = json_string_value(json_array_get(names, i));
		if (!job->names[i])
			return error_set(err, ERR_DATA, "JOB: a node's name is no text");
	}
	rc = read_ints(job->text, "first", job->first_rank, expected, err);
	return rc ? rc : read_ints(job->text, "counts", job->rank_count, expected, err);
}

static int read_strings(struct agent_job *job, const struct wire_message *message,
			struct error *err)
{
	size_t left = message->data_size, count;
	const unsigned char *at;
	int rc;

	job->block = malloc(left + 1);
	if (!job->block)
		return error_memory(err, "the program's arguments");
	memcpy(job->block, left ? message->data : "", left);
	at = job->block;
	rc = bytes_next_strings(&at, &left, &job->argv, &count, err);
	if (!rc && !count)
		rc = error_set(err, ERR_DATA, "JOB names no program");
	if (!rc)
		rc = bytes_next_strings(&at, &left, &job->base, &job->base_count, err);
	if (!rc)
		rc = bytes_next_strings(&at, &left, &job->cwd, &count, err);
	return rc;
}

int agent_job_read(struct agent *agent, const struct wire_message *message, const json_t *text,
		   struct error *err)
{
	struct agent_job job = {.text = json_incref((json_t *)text)};
	const char *pmix = json_string_value(json_object_get(text, "pmix"));
	const char *log_dir = json_string_value(json_object_get(text, "log_dir"));
	const char *stop = json_string_value(json_object_get(text, "stop_file"));
	int64_t world;
	int hold, pass, input, want_heartbeats;
	int rc = json_get_int("JOB", text, "world", 1, INT32_MAX, &world, err);

	if (!rc)
		rc = json_get_bool("JOB", text, "hold", &hold, err);
	if (!rc)
		rc = json_get_bool("JOB", text, "stdin", &pass, err);
	if (!rc)
		rc = json_get_bool("JOB", text, "input", &input, err);
	if (!rc)
		rc = json_get_bool("JOB", text, "watch", &want_heartbeats, err);
	if (!rc)
		rc = read_nodes(&job, agent_downlinks_node_count(agent->downlinks), err);
	if (!rc)
		rc = read_strings(&job, message, err);
	if (!rc && log_dir && !(job.log_dir = strdup(log_dir)))
		rc = error_memory(err, "the log folder's name");
	if (!rc && stop && *stop && !(job.stop_file = strdup(stop)))
		rc = error_memory(err, "the stop file's name");
	if (!rc && agent->supervise)
		rc = error_set(err, ERR_DATA, "a second JOB while the first one runs");
	if (rc) {
		agent_job_free(&job);
		return rc;
	}
	job.world_size = (int)world;
	job.hold_port = hold;
	job.pass_stdin = pass;
	job.input = input;
	job.want_heartbeats = want_heartbeats;
	job.pmix_disabled = pmix && !strcmp(pmix, "off");
	job.pmix_required = pmix && !strcmp(pmix, "on");
	agent_job_free(&agent->job);
	agent->job = job;
	agent->have_job = true;
	agent->attempt = message->attempt;
	agent_uplink_set_attempt(agent->uplink, agent->attempt);
	agent->rank_count = (size_t)job.rank_count[agent->params.node_index];
	return 0;
}
