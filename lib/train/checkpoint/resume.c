/* SPDX-License-Identifier: BSD-3-Clause */
/* Which checkpoint a run resumes from: the newest whole one; if several nodes keep copies, the
 * newest of any node. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "train/checkpoint/directory.h"
#include "train/checkpoint/saver.h"

/* Loads a checkpoint on this rank. It is on the heap because a file system may block it forever. */
struct loading {
	const struct saver *saver;
	struct train_state state;
	struct variables variables;
	char *path;
};

static int load(void *argument, struct error *err)
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

/* After each rank that writes has loaded the newest checkpoint of its own directory: *root is the
 * lowest rank with the newest of all. Collective. */
static int choose_root(struct loading *loading, int *root, struct error *err)
{
	const struct saver *saver = loading->saver;
	const struct rank_group *group = saver->request.group;
	double step = loading->path ? (double)loading->state.step : -1;
	double ends[2] = {step, saver->lease ? -step : -INFINITY}, chosen[1];
	int rc = rank_group_reduce(group, ends, 2, COMM_MAX, err);

	if (rc || ends[0] < 0)
		return rc;
	chosen[0] = -(step < ends[0] ? rank_group_size(group) : rank_group_rank(group));
	rc = rank_group_reduce(group, chosen, 1, COMM_MAX, err);
	if (rc)
		return rc;
	*root = -(int)chosen[0];
	if (-ends[1] < ends[0])
		rank_group_note(group,
				"note: resuming from step %" PRId64 ", which not all nodes have",
				(int64_t)ends[0]);
	free(loading->path);
	loading->path = checkpoint_dir_path_of(saver->request.options->directory, (int64_t)ends[0]);
	return loading->path ? 0 : error_memory(err, "a checkpoint's name");
}

int saver_resume(struct saver *saver, struct train_state *state, struct variables *variables,
		 char **path, int *root, struct error *err)
{
	const struct saver_request *request = &saver->request;
	bool copies = saver->copies > 1 && !strcmp(request->options->resume, "auto");
	bool loads = copies ? saver->lease != NULL : !rank_group_rank(request->group);
	struct loading *loading = calloc(1, sizeof *loading);
	int rc = rank_group_ready(request->group, loading ? 0 : error_memory(err, "a checkpoint"),
				  err);

	*path = NULL;
	*root = 0;
	if (rc) {
		free(loading);
		return rc;
	}
	*loading = (struct loading){.saver = saver, .state = *state, .variables = *variables};
	rc = saver_io(saver, loads ? load : NULL, loading, err);
	if (saver->stalled)
		return rc;
	if (!rc && copies)
		rc = choose_root(loading, root, err);
	*state = loading->state;
	if (!rc)
		*path = loading->path;
	else
		free(loading->path);
	free(loading);
	return rc;
}
