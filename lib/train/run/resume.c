/* SPDX-License-Identifier: BSD-3-Clause */
/* Which checkpoint a run goes on from: the newest whole one; where several nodes keep copies the
 * newest that all have, so that none is left with a step of its own. */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/crc32c.h"
#include "train/checkpoint/directory.h"
#include "train/run/loop_internal.h"

static void note_skipped(void *context, const char *text)
{
	const struct train *train = context;
	char line[1200];

	if (!train->comm->rank) {
		train_note(train, "%s", text);
		return;
	}
	snprintf(line, sizeof line, "rank %d: %s", train->comm->rank, text);
	train->sink->note(train->sink->context, line);
}

/* ---- one folder ---- */

static int load_from_directory(struct train *train, struct variables *variables, struct error *err)
{
	const struct train_options *options = train->options;
	const struct checkpoint_sink sink = {train, note_skipped};
	char *path = NULL;
	int rc = 0;

	if (!strcmp(options->resume, "auto")) {
		if (options->ckpt)
			rc = checkpoint_resume(options->ckpt, train->graph, &train->buckets, &sink,
					       &train->state, variables, &path, err);
	} else if (strcmp(options->resume, "never")) {
		path = strdup(options->resume);
		rc = path ? checkpoint_load(path, train->graph, &train->buckets, &train->state,
					    variables, err)
			  : error_memory(err, "a name");
	}
	if (rc)
		free(path);
	else
		train->resumed_from = path;
	return rc;
}

/* ---- copies ---- */

/* A rank's way down its own folder. */
struct replica {
	int64_t *steps; /* as they are to be tried */
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

/* Load the newest whole one of at most step bound. */
static int load_newest_up_to(struct train *train, struct replica *replica, int64_t bound,
			     struct variables *variables, struct error *err)
{
	while (replica->next < replica->count) {
		int64_t step = replica->steps[replica->next++];
		struct error why = {0};

		if (step > bound)
			continue;
		char *path = NULL;
		bool stop;
		int rc = checkpoint_load_step(train->options->ckpt, step, train->graph,
					      &train->buckets, &train->state, variables, &path,
					      &stop, &why);

		free(path);
		if (stop) {
			*err = why;
			return rc;
		}
		if (!rc) {
			replica->step = step;
			replica->fingerprint = fingerprint_of(&train->state, variables);
			return 0;
		}
		error_prefix(&why, "passed over");
		note_skipped(train, why.text);
	}
	replica->step = -1;
	return 0;
}

static int list_replica(struct train *train, struct replica *replica, struct error *err)
{
	const struct checkpoint_sink sink = {train, note_skipped};
	struct error failure = {0};

	replica->steps =
		checkpoint_dir_resume_order(train->options->ckpt, &sink, &replica->count, &failure);
	if (replica->steps)
		return 0;
	*err = failure;
	return -failure.code;
}

/* The least and the most of all ranks that take part; false where none does. Collective. */
static int reduce_min_max(struct train *train, bool participates, double value, double *min,
			  double *max, struct error *err)
{
	double values[2] = {participates ? -value : -INFINITY, participates ? value : -INFINITY};
	int rc = comm_reduce_on_host(train->comm, train->queue, values, 2, COMM_MAX, err);

	*min = -values[0];
	*max = values[1];
	return rc;
}

/* The newest that all have which have one at all; *step -1: there is no such. *newest: the newest
 * of any. Collective. */
static int agree_on_step(struct train *train, struct replica *replica, struct variables *variables,
			 int64_t *step, int64_t *newest, struct error *err)
{
	double min, max, fingerprint_min, fingerprint_max;
	bool participates;
	int rc = train->writes ? list_replica(train, replica, err) : 0;

	if (!rc && train->writes)
		rc = load_newest_up_to(train, replica, INT64_MAX, variables, err);
	rc = train_ready(train, rc, err);
	participates = train->writes && replica->step >= 0;
	*step = *newest = -1;
	while (!rc) {
		rc = reduce_min_max(train, participates, (double)replica->step, &min, &max, err);
		if (rc || !isfinite(max) || min < 0)
			break;
		if (*newest < 0)
			*newest = (int64_t)max;
		if (min == max) {
			rc = reduce_min_max(train, participates, replica->fingerprint,
					    &fingerprint_min, &fingerprint_max, err);
			if (rc || fingerprint_min == fingerprint_max) {
				*step = (int64_t)max;
				break;
			}
			train_note(train,
				   "passed over: the copies of step %" PRId64 " are not the same",
				   (int64_t)max);
			min--;
		}
		if (participates && (double)replica->step > min)
			rc = load_newest_up_to(train, replica, (int64_t)min, variables, err);
		rc = train_ready(train, rc, err);
	}
	return rc;
}

/* Of copies: train->root has the weights afterwards. Collective. */
static int load_from_replicas(struct train *train, struct variables *variables, struct error *err)
{
	struct replica replica = {.step = -1};
	int64_t step, newest;
	double max[1];
	int rc = agree_on_step(train, &replica, variables, &step, &newest, err);

	if (!rc && step < 0 && newest >= 0) {
		train_note(train,
			   "note: no checkpoint is whole on all nodes; going on from the newest of "
			   "any");
		step = newest;
		replica.next = 0;
		replica.step = -1;
		for (size_t i = 0; i < replica.count; i++)
			if (replica.steps[i] == newest) {
				replica.next = i;
				replica.count = i + 1;
				rc = load_newest_up_to(train, &replica, newest, variables, err);
			}
		rc = train_ready(train, rc, err);
	}
	/* The lowest rank that has it. */
	max[0] = step >= 0 && replica.step == step ? train->comm->size - train->comm->rank : 0;
	if (!rc)
		rc = comm_reduce_on_host(train->comm, train->queue, max, 1, COMM_MAX, err);
	if (!rc && max[0] > 0) {
		train->root = train->comm->size - (int)max[0];
		train->resumed_from = checkpoint_dir_path_of(train->options->ckpt, step);
		if (!train->resumed_from)
			rc = error_memory(err, "a checkpoint's name");
	}
	free(replica.steps);
	return rc;
}

/* ---- both ---- */

int train_load_weights(struct train *train, struct variables *variables, struct error *err)
{
	const struct train_options *options = train->options;

	if (train->writers > 1 && options->ckpt && !strcmp(options->resume, "auto"))
		return load_from_replicas(train, variables, err);
	return train_ready(train,
			   train->comm->rank ? 0 : load_from_directory(train, variables, err), err);
}
