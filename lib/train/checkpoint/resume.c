/* SPDX-License-Identifier: BSD-3-Clause */
/* Which checkpoint a run resumes from: the newest whole one; if several nodes keep copies, the
 * newest that all of them have, so that no node is left with a step of its own. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/crc32c.h"
#include "train/checkpoint/directory.h"
#include "train/checkpoint/saver.h"

/* ---- one directory ---- */

static int load_from_directory(const struct saver *saver, struct train_state *state,
			       struct variables *variables, char **path, struct error *err)
{
	const struct checkpoint_options *options = saver->request.options;
	const struct checkpoint_sink sink = {saver->request.group, rank_group_note_from_rank};
	char *file = NULL;
	int rc = 0;

	if (!strcmp(options->resume, "auto")) {
		if (options->directory)
			rc = checkpoint_resume(options->directory, &sink, state, variables, &file,
					       err);
	} else if (strcmp(options->resume, "never")) {
		file = strdup(options->resume);
		rc = file ? checkpoint_load(file, state, variables, err)
			  : error_memory(err, "a file name");
	}
	if (rc)
		free(file);
	else
		*path = file;
	return rc;
}

/* ---- copies ---- */

/* A rank's way down the checkpoints of its own directory. */
struct replica {
	const struct saver *saver;
	struct train_state *state;
	struct variables *variables;
	int64_t *steps; /* in the order in which they are tried */
	size_t count, next;
	int64_t step; /* whose weights are loaded; -1: none is left */
	uint32_t fingerprint;
};

static uint32_t fingerprint_of(const struct train_state *state, const struct variables *variables)
{
	const int64_t place[] = {state->step, state->epoch, state->position, (int64_t)state->seed};
	uint32_t fingerprint = crc32c(0, place, sizeof place);

	fingerprint =
		crc32c(fingerprint, variables->weights, variables->weight_count * sizeof(float));
	fingerprint =
		crc32c(fingerprint, variables->momentum, variables->weight_count * sizeof(float));
	return crc32c(fingerprint, variables->buffers, variables->buffer_count * sizeof(float));
}

/* Load the newest whole checkpoint whose step is at most bound. */
static int load_newest_up_to(struct replica *replica, int64_t bound, struct error *err)
{
	const struct saver_request *request = &replica->saver->request;

	while (replica->next < replica->count) {
		int64_t step = replica->steps[replica->next++];
		struct error why = {0};

		if (step > bound)
			continue;
		char *path = NULL;
		bool stop;
		int rc = checkpoint_load_step(request->options->directory, step, replica->state,
					      replica->variables, &path, &stop, &why);

		free(path);
		if (stop) {
			*err = why;
			return rc;
		}
		if (!rc) {
			replica->step = step;
			replica->fingerprint = fingerprint_of(replica->state, replica->variables);
			return 0;
		}
		error_prefix(&why, "warning: skipped");
		rank_group_note_from_rank(request->group, why.text);
	}
	replica->step = -1;
	return 0;
}

static int list_replica(struct replica *replica, struct error *err)
{
	const struct saver_request *request = &replica->saver->request;
	const struct checkpoint_sink sink = {request->group, rank_group_note_from_rank};

	replica->steps = checkpoint_dir_resume_order(request->options->directory, &sink,
						     &replica->count, err);
	return replica->steps ? 0 : -err->code;
}

/* The least and the largest value of the ranks that take part; infinite if none does. Collective.
 */
static int reduce_min_max(const struct rank_group *group, bool participates, double value,
			  double *min, double *max, struct error *err)
{
	double values[2] = {participates ? -value : -INFINITY, participates ? value : -INFINITY};
	int rc = rank_group_reduce(group, values, 2, COMM_MAX, err);

	*min = -values[0];
	*max = values[1];
	return rc;
}

/* Find the newest step that all ranks with checkpoints have; *step is -1 if there is none. *newest:
 * the newest of any rank. Collective. */
static int agree_on_step(struct replica *replica, int64_t *step, int64_t *newest, struct error *err)
{
	struct rank_group *group = replica->saver->request.group;
	bool writes = replica->saver->writing.own, participates;
	double min, max, fingerprint_min, fingerprint_max;
	int rc = writes ? list_replica(replica, err) : 0;

	if (!rc && writes)
		rc = load_newest_up_to(replica, INT64_MAX, err);
	rc = rank_group_ready(group, rc, err);
	participates = writes && replica->step >= 0;
	*step = *newest = -1;
	while (!rc) {
		rc = reduce_min_max(group, participates, (double)replica->step, &min, &max, err);
		if (rc || !isfinite(max) || min < 0)
			break;
		if (*newest < 0)
			*newest = (int64_t)max;
		if (min == max) {
			rc = reduce_min_max(group, participates, replica->fingerprint,
					    &fingerprint_min, &fingerprint_max, err);
			if (rc || fingerprint_min == fingerprint_max) {
				*step = (int64_t)max;
				break;
			}
			rank_group_note(group,
					"warning: skipped: the copies of step %" PRId64 " differ",
					(int64_t)max);
			min--;
		}
		if (participates && (double)replica->step > min)
			rc = load_newest_up_to(replica, (int64_t)min, err);
		rc = rank_group_ready(group, rc, err);
	}
	return rc;
}

/* If no step is complete on all nodes, load the newest one on the node that has it. Collective. */
static int load_newest_of_any(struct replica *replica, int64_t newest, struct error *err)
{
	struct rank_group *group = replica->saver->request.group;
	int rc = 0;

	rank_group_note(group, "warning: no checkpoint is complete on all nodes; resuming from the "
			       "newest on any node");
	replica->next = 0;
	replica->step = -1;
	for (size_t i = 0; i < replica->count; i++)
		if (replica->steps[i] == newest) {
			replica->next = i;
			replica->count = i + 1;
			rc = load_newest_up_to(replica, newest, err);
		}
	return rank_group_ready(group, rc, err);
}

/* *root has the weights afterwards. Collective. */
static int load_from_replicas(struct replica *replica, char **path, int *root, struct error *err)
{
	const struct rank_group *group = replica->saver->request.group;
	int64_t step, newest;
	double max[1];
	int rc = agree_on_step(replica, &step, &newest, err);

	if (!rc && step < 0 && newest >= 0) {
		step = newest;
		rc = load_newest_of_any(replica, newest, err);
	}
	/* The lowest rank that has it. */
	max[0] = step >= 0 && replica->step == step
			 ? rank_group_size(group) - rank_group_rank(group)
			 : 0;
	if (!rc)
		rc = rank_group_reduce(group, max, 1, COMM_MAX, err);
	if (!rc && max[0] > 0) {
		*root = rank_group_size(group) - (int)max[0];
		*path = checkpoint_dir_path_of(replica->saver->request.options->directory, step);
		if (!*path)
			rc = error_memory(err, "a checkpoint's name");
	}
	free(replica->steps);
	return rc;
}

/* ---- both ---- */

int saver_resume(const struct saver *saver, struct train_state *state, struct variables *variables,
		 char **path, int *root, struct error *err)
{
	const struct saver_request *request = &saver->request;
	const struct checkpoint_options *options = request->options;
	struct replica replica = {
		.saver = saver, .state = state, .variables = variables, .step = -1};
	int rc = 0;

	*path = NULL;
	*root = 0;
	if (saver->writing.count > 1 && options->directory && !strcmp(options->resume, "auto"))
		return load_from_replicas(&replica, path, root, err);
	if (!rank_group_rank(request->group))
		rc = load_from_directory(saver, state, variables, path, err);
	return rank_group_ready(request->group, rc, err);
}
