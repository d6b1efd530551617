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

static void passed_over(void *context, const char *text)
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

static int find_here(struct train *train, struct variables *variables, struct error *err)
{
	const struct train_options *options = train->options;
	const struct checkpoint_sink sink = {train, passed_over};
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
struct copy {
	int64_t *steps; /* as they are to be tried */
	size_t count, next;
	int64_t step; /* whose weights are loaded; -1: none is left */
	uint32_t mark;
};

static uint32_t mark_of(const struct train_state *state, const struct variables *variables)
{
	const int64_t place[] = {state->step, state->epoch, state->position, (int64_t)state->seed};
	uint32_t mark = crc32c(0, place, sizeof place);

	mark = crc32c(mark, variables->weights, variables->weight_count * sizeof(float));
	mark = crc32c(mark, variables->momentum, variables->weight_count * sizeof(float));
	return crc32c(mark, variables->buffers, variables->buffer_count * sizeof(float));
}

/* Load the newest whole one of at most step bound. */
static int go_down(struct train *train, struct copy *copy, int64_t bound,
		   struct variables *variables, struct error *err)
{
	while (copy->next < copy->count) {
		int64_t step = copy->steps[copy->next++];
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
			copy->step = step;
			copy->mark = mark_of(&train->state, variables);
			return 0;
		}
		error_prefix(&why, "passed over");
		passed_over(train, why.text);
	}
	copy->step = -1;
	return 0;
}

static int list_copy(struct train *train, struct copy *copy, struct error *err)
{
	const struct checkpoint_sink sink = {train, passed_over};
	struct error failure = {0};

	copy->steps = folder_order(train->options->ckpt, &sink, &copy->count, &failure);
	if (copy->steps)
		return 0;
	*err = failure;
	return -failure.code;
}

/* The least and the most of all ranks that take part; false where none does. Collective. */
static int span(struct train *train, bool takes_part, double value, double *least, double *most,
		struct error *err)
{
	double values[2] = {takes_part ? -value : -INFINITY, takes_part ? value : -INFINITY};
	int rc = comm_agree(train->comm, train->queue, values, 2, COMM_MAX, err);

	*least = -values[0];
	*most = values[1];
	return rc;
}

/* The newest that all have which have one at all; *step -1: there is no such. *newest: the newest of
 * any. Collective. */
static int agree_on_copy(struct train *train, struct copy *copy, struct variables *variables,
			 int64_t *step, int64_t *newest, struct error *err)
{
	double least, most, mark_least, mark_most;
	bool takes_part;
	int rc = train->writes ? list_copy(train, copy, err) : 0;

	if (!rc && train->writes)
		rc = go_down(train, copy, INT64_MAX, variables, err);
	rc = train_ready(train, rc, err);
	takes_part = train->writes && copy->step >= 0;
	*step = *newest = -1;
	while (!rc) {
		rc = span(train, takes_part, (double)copy->step, &least, &most, err);
		if (rc || !isfinite(most) || least < 0)
			break;
		if (*newest < 0)
			*newest = (int64_t)most;
		if (least == most) {
			rc = span(train, takes_part, copy->mark, &mark_least, &mark_most, err);
			if (rc || mark_least == mark_most) {
				*step = (int64_t)most;
				break;
			}
			train_note(train,
				   "passed over: the copies of step %" PRId64 " are not the same",
				   (int64_t)most);
			least--;
		}
		if (takes_part && (double)copy->step > least)
			rc = go_down(train, copy, (int64_t)least, variables, err);
		rc = train_ready(train, rc, err);
	}
	return rc;
}

/* Of copies: train->root has the weights afterwards. Collective. */
static int find_copies(struct train *train, struct variables *variables, struct error *err)
{
	struct copy copy = {.step = -1};
	int64_t step, newest;
	double most[1];
	int rc = agree_on_copy(train, &copy, variables, &step, &newest, err);

	if (!rc && step < 0 && newest >= 0) {
		train_note(train,
			   "note: no checkpoint is whole on all nodes; going on from the newest of "
			   "any");
		step = newest;
		copy.next = 0;
		copy.step = -1;
		for (size_t i = 0; i < copy.count; i++)
			if (copy.steps[i] == newest) {
				copy.next = i;
				copy.count = i + 1;
				rc = go_down(train, &copy, newest, variables, err);
			}
		rc = train_ready(train, rc, err);
	}
	/* The lowest rank that has it. */
	most[0] = step >= 0 && copy.step == step ? train->comm->size - train->comm->rank : 0;
	if (!rc)
		rc = comm_agree(train->comm, train->queue, most, 1, COMM_MAX, err);
	if (!rc && most[0] > 0) {
		train->root = train->comm->size - (int)most[0];
		train->resumed_from = folder_path_of(train->options->ckpt, step);
		if (!train->resumed_from)
			rc = error_memory(err, "a checkpoint's name");
	}
	free(copy.steps);
	return rc;
}

/* ---- both ---- */

int train_find_weights(struct train *train, struct variables *variables, struct error *err)
{
	const struct train_options *options = train->options;

	if (train->writers > 1 && options->ckpt && !strcmp(options->resume, "auto"))
		return find_copies(train, variables, err);
	return train_ready(train, train->comm->rank ? 0 : find_here(train, variables, err), err);
}
