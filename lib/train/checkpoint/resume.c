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

/* Loads a checkpoint on this rank. It is on the heap because a file system may block it forever.
 * With copies, it steps through the checkpoints of this rank's own directory. */
struct loading {
	struct saver *saver;
	struct train_state state;
	struct variables variables;
	char *path;
	int64_t *steps; /* in the order in which they are tried */
	size_t count, next;
	int64_t bound; /* the newest step to try */
	int64_t step;  /* whose weights are loaded; -1: none is left */
	uint32_t fingerprint;
};

/* ---- one directory ---- */

static int load_from_directory(void *argument, struct error *err)
{
	struct loading *loading = argument;
	const struct saver_request *request = &loading->saver->request;
	const char *resume = request->options->resume, *directory = request->options->directory;
	const struct checkpoint_sink sink = {request->group, rank_group_note_from_rank};
	struct train_state *state = &loading->state;

	if (!strcmp(resume, "auto"))
		return directory ? checkpoint_resume(directory, &sink, state, &loading->variables,
						     &loading->path, err)
				 : 0;
	if (!strcmp(resume, "never"))
		return 0;
	loading->path = strdup(resume);
	return loading->path ? checkpoint_load(resume, state, &loading->variables, err)
			     : error_memory(err, "a file name");
}

/* ---- copies ---- */

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
static int load_newest(void *argument, struct error *err)
{
	struct loading *replica = argument;
	const struct saver_request *request = &replica->saver->request;

	while (replica->next < replica->count) {
		int64_t step = replica->steps[replica->next++];
		struct error why = {0};

		if (step > replica->bound)
			continue;
		char *path = NULL;
		bool stop;
		int rc = checkpoint_load_step(request->options->directory, step, &replica->state,
					      &replica->variables, &path, &stop, &why);

		free(path);
		if (stop) {
			*err = why;
			return rc;
		}
		if (!rc) {
			replica->step = step;
			replica->fingerprint = fingerprint_of(&replica->state, &replica->variables);
			return 0;
		}
		error_prefix(&why, "warning: skipped");
		rank_group_note_from_rank(request->group, why.text);
	}
	replica->step = -1;
	return 0;
}

static int list_and_load_newest(void *argument, struct error *err)
{
	struct loading *replica = argument;
	const struct saver_request *request = &replica->saver->request;
	const struct checkpoint_sink sink = {request->group, rank_group_note_from_rank};

	replica->steps = checkpoint_dir_resume_order(request->options->directory, &sink,
						     &replica->count, err);
	return replica->steps ? load_newest(replica, err) : -err->code;
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
static int agree_on_step(struct loading *replica, int64_t *step, int64_t *newest, struct error *err)
{
	struct rank_group *group = replica->saver->request.group;
	bool writes = replica->saver->lease, participates, behind;
	double min, max, fingerprint_min, fingerprint_max;
	int rc = saver_io(replica->saver, writes ? list_and_load_newest : NULL, replica, err);

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
		behind = participates && (double)replica->step > min;
		replica->bound = (int64_t)min;
		if (!rc)
			rc = saver_io(replica->saver, behind ? load_newest : NULL, replica, err);
	}
	return rc;
}

/* If no step is complete on all nodes, load the newest one on the node that has it. Collective. */
static int load_newest_of_any(struct loading *replica, int64_t newest, struct error *err)
{
	struct rank_group *group = replica->saver->request.group;
	bool has = false;

	rank_group_note(group, "warning: no checkpoint is complete on all nodes; resuming from the "
			       "newest on any node");
	replica->next = 0;
	replica->step = -1;
	replica->bound = newest;
	for (size_t i = 0; i < replica->count; i++)
		if (replica->steps[i] == newest) {
			replica->next = i;
			replica->count = i + 1;
			has = true;
		}
	return saver_io(replica->saver, has ? load_newest : NULL, replica, err);
}

/* *root has the weights afterwards. Collective. */
static int load_from_replicas(struct loading *replica, int *root, struct error *err)
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
		replica->path =
			checkpoint_dir_path_of(replica->saver->request.options->directory, step);
		if (!replica->path)
			rc = error_memory(err, "a checkpoint's name");
	}
	return rc;
}

/* ---- both ---- */

int saver_resume(struct saver *saver, struct train_state *state, struct variables *variables,
		 char **path, int *root, struct error *err)
{
	const struct saver_request *request = &saver->request;
	const struct checkpoint_options *options = request->options;
	struct loading *loading = calloc(1, sizeof *loading);
	int rc = rank_group_ready(request->group, loading ? 0 : error_memory(err, "a checkpoint"),
				  err);

	*path = NULL;
	*root = 0;
	if (rc) {
		free(loading);
		return rc;
	}
	*loading = (struct loading){.saver = saver,
				    .state = *state,
				    .variables = *variables,
				    .bound = INT64_MAX,
				    .step = -1};
	if (saver->copies > 1 && options->directory && !strcmp(options->resume, "auto"))
		rc = load_from_replicas(loading, root, err);
	else
		rc = saver_io(saver, rank_group_rank(request->group) ? NULL : load_from_directory,
			      loading, err);
	if (saver->stalled)
		return rc;
	*state = loading->state;
	if (!rc)
		*path = loading->path;
	else
		free(loading->path);
	free(loading->steps);
	free(loading);
	return rc;
}
