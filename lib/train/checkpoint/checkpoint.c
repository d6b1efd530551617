/* SPDX-License-Identifier: BSD-3-Clause */
#include "train/checkpoint/checkpoint.h"

#include <errno.h>
#include <float.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/json.h"
#include "base/log.h"
#include "train/checkpoint/directory.h"
#include "train/checkpoint/lease.h"
#include "train/checkpoint/safetensors.h"

#define FORMAT "1"
#define STATE_MAX 65536
#define STATE_BYTES 2048      /* of metadata, besides checksums */
#define HEADER_BYTES_EACH 192 /* per tensor, besides its name twice */
#define WORLD_MAX (1 << 20)

/* ---- the state as JSON ---- */

int train_state_data(struct train_state *state, const char *spec, struct error *err)
{
	JSON_AUTO json = json_text(spec);
	const char *text = json_string_value(json);
	size_t size = json_string_length(json);

	if (!text)
		return error_memory(err, "the name of the data");
	if (size >= sizeof state->data)
		/* Do not cut within a character. */
		for (size = sizeof state->data - 1;
		     size && ((unsigned char)text[size] & 0xc0) == 0x80;)
			size--;
	memcpy(state->data, text, size);
	state->data[size] = 0;
	return 0;
}

static char *state_text(const struct graph *graph, const struct train_state *state)
{
	/* Shuffling and augmentation use random numbers that are functions of seed and position. So
	 * seed, epoch and position are their whole state. */
	json_t *scaler = state->scale > 0
				 ? json_pack("{s:f, s:I}", "scale", state->scale, "growth_tracker",
					     (json_int_t)state->growth_tracker)
				 : json_null();
	JSON_AUTO json = json_pack(
		"{s:s, s:i, s:I, s:I, s:I, s:I, s:i, s:i, s:I, s:I, s:I, s:f, s:o, s:o}", "model",
		graph->model, "classes", graph->classes, "step", (json_int_t)state->step, "epoch",
		(json_int_t)state->epoch, "epochs", (json_int_t)state->epochs, "position",
		(json_int_t)state->position, "world", state->world, "batch", state->batch, "update",
		(json_int_t)state->update, "batches", (json_int_t)state->batches, "seed",
		(json_int_t)state->seed, "lr", state->lr, "data", json_text(state->data), "scaler",
		scaler);

	return json ? json_dumps(json, JSON_COMPACT) : NULL;
}

/* Absent or null: there was no loss scaling. */
static int read_scaler(const char *path, const json_t *json, struct train_state *state,
		       struct error *err)
{
	const json_t *scaler = json_object_get(json, "scaler");
	double scale = json_number_value(json_object_get(scaler, "scale"));
	int rc;

	if (!scaler || json_is_null(scaler))
		return 0;
	rc = json_get_int(path, scaler, "growth_tracker", 0, INT32_MAX, &state->growth_tracker,
			  err);
	if (!rc && !(scale > 0 && scale <= FLT_MAX))
		rc = error_set(err, ERR_DATA, "%s: the loss scale is not a positive number", path);
	if (!rc)
		state->scale = scale;
	return rc;
}

/* *foreign: it belongs to another network. */
static int read_state(const char *path, const struct safetensors *file, const struct graph *graph,
		      struct train_state *out, bool *foreign, struct error *err)
{
	const char *format = json_string_value(json_object_get(file->metadata, "berth.format"));
	const char *text = json_string_value(json_object_get(file->metadata, "berth.state"));
	struct train_state state = {0};
	const char *model, *data;
	int64_t world, batch, seed, classes;
	const struct {
		const char *key;
		int64_t min, max, *out;
	} numbers[] = {
		{"classes", 1, INT32_MAX, &classes},
		{"step", 0, CHECKPOINT_STEP_MAX, &state.step},
		{"epoch", 0, INT32_MAX, &state.epoch},
		{"position", 0, INT64_MAX / 2, &state.position},
		{"world", 1, WORLD_MAX, &world},
		{"batch", 1, INT32_MAX, &batch},
		{"batches", 0, INT64_MAX / 2, &state.batches},
	};
	JSON_AUTO json = NULL;

	*foreign = false;
	if (!format || !text)
		return error_set(err, ERR_DATA,
				 "%s is not a berth checkpoint: berth.state is missing", path);
	if (strcmp(format, FORMAT))
		return error_set(err, ERR_DATA, "%s has format %.16s, expected " FORMAT, path,
				 format);
	int rc = json_read(path, text, strlen(text), STATE_MAX, &json, err);

	if (!rc)
		rc = json_get_string(path, json, "model", &model, err);
	for (size_t i = 0; !rc && i < sizeof numbers / sizeof *numbers; i++)
		rc = json_get_int(path, json, numbers[i].key, numbers[i].min, numbers[i].max,
				  numbers[i].out, err);
	/* The first files lack these members. */
	state.lr = json_number_value(json_object_get(json, "lr"));
	state.update = rc ? 0 : batch * world;
	if (!rc && json_object_get(json, "update"))
		rc = json_get_int(path, json, "update", 1, INT64_MAX / 2, &state.update, err);
	if (!rc && json_object_get(json, "epochs"))
		rc = json_get_int(path, json, "epochs", 0, INT64_MAX / 2, &state.epochs, err);
	if (!rc)
		rc = json_get_int(path, json, "seed", INT64_MIN, INT64_MAX, &seed, err);
	if (!rc)
		rc = json_get_string(path, json, "data", &data, err);
	if (!rc)
		rc = read_scaler(path, json, &state, err);
	if (rc)
		return rc;
	*foreign = strcmp(model, graph->model) || classes != graph->classes;
	if (*foreign)
		return error_set(err, ERR_DATA,
				 "%s holds %.32s with %" PRId64
				 " classes, but this run trains %s with %d",
				 path, model, classes, graph->model, graph->classes);
	state.world = (int)world;
	state.batch = (int)batch;
	state.seed = (uint64_t)seed;
	rc = train_state_data(&state, data, err);
	if (!rc)
		*out = state;
	return rc;
}

/* ---- saving ---- */

/* The largest possible size of list's file. */
static uint64_t list_size(const struct variables_list *list)
{
	uint64_t size = 4096 + STATE_BYTES;

	for (size_t i = 0; i < list->count; i++)
		size += list->tensors[i].size_bytes + HEADER_BYTES_EACH +
			2 * strlen(list->tensors[i].name);
	return size;
}

uint64_t checkpoint_size(const struct graph *graph, const struct buckets *buckets)
{
	uint64_t size = 4096 + STATE_BYTES;

	for (int i = 0; i < graph->param_count; i++)
		size += 2 * ((uint64_t)graph->params[i].count * sizeof(float) + HEADER_BYTES_EACH +
			     2 * strlen(VARIABLES_MOMENTUM) + 2 * strlen(graph->params[i].name));
	for (int i = 0; i < graph->buffer_count; i++)
		size += (uint64_t)graph->buffers[i].count * sizeof(float) + 2 * HEADER_BYTES_EACH +
			4 * strlen(graph->buffers[i].name);
	return size;
}

/* Write variables to a temporary file, then rename it to DIR/name. */
static int write_file(const char *directory, const char *name, const struct train_state *state,
		      const struct variables *variables, const json_t *metadata,
		      struct lease *lease, char **path, struct error *err)
{
	struct variables_list list;
	char *file;
	int rc = variables_list(variables, state->batches, metadata != NULL, &list, err);

	if (rc)
		return rc;
	if (!(file = text_format("%s/%s", directory, name)))
		rc = error_memory(err, "a file's name");
	if (!rc)
		rc = checkpoint_dir_has_space(directory, list_size(&list), err);
	if (!rc)
		rc = safetensors_write(file, list.tensors, list.count, metadata, lease, err);
	variables_list_free(&list);
	if (rc)
		free(file);
	else
		*path = file;
	return rc;
}

int checkpoint_save(const char *directory, const struct train_state *state,
		    const struct variables *variables, struct lease *lease, char **path,
		    struct error *err)
{
	char *text = state_text(variables->graph, state), *file = NULL, name[CHECKPOINT_NAME_BYTES];
	JSON_AUTO metadata =
		text ? json_pack("{s:s, s:s}", "berth.format", FORMAT, "berth.state", text) : NULL;
	int rc = metadata ? 0 : error_memory(err, "a checkpoint");

	if (!rc)
		rc = write_file(directory, checkpoint_dir_name_of(state->step, name), state,
				variables, metadata, lease, &file, err);
	if (!rc)
		rc = checkpoint_dir_set_latest(directory, state->step, lease, err);
	free(text);
	if (rc)
		free(file);
	else
		*path = file;
	return rc;
}

int checkpoint_save_model(const char *directory, const struct train_state *state,
			  const struct variables *variables, struct lease *lease, char **path,
			  struct error *err)
{
	return write_file(directory, "model.safetensors", state, variables, NULL, lease, path, err);
}

int checkpoint_keep_foreign(const char *directory, const struct graph *graph, int64_t step,
			    struct lease *lease, char **kept, struct error *err)
{
	struct train_state state;
	char *path = checkpoint_dir_path_of(directory, step), *aside = NULL;
	int rc = 0;

	*kept = NULL;
	if (!path)
		return error_memory(err, "a checkpoint's name");
	if (access(path, F_OK) || !checkpoint_check(path, graph, true, &state, NULL))
		goto out;
	for (int i = 1; !rc; i++) {
		free(aside);
		aside = text_format("%s.%d", path, i);
		if (!aside)
			rc = error_memory(err, "a checkpoint's name");
		else if (access(aside, F_OK))
			break;
	}
	if (!rc)
		rc = lease_check(lease, err);
	if (!rc && rename(path, aside))
		rc = error_set(err, ERR_OUTPUT,
			       "%s does not belong to this run and cannot be renamed: %s", path,
			       strerror(errno));
	if (rc)
		free(aside);
	else
		*kept = aside;
out:
	free(path);
	return rc;
}

/* ---- loading ---- */

int checkpoint_check(const char *path, const struct graph *graph, bool data,
		     struct train_state *state, struct error *err)
{
	struct safetensors file = {0};
	bool foreign;
	int rc = data ? safetensors_read(path, &file, err)
		      : safetensors_read_header(path, &file, err);

	if (!rc)
		rc = read_state(path, &file, graph, state, &foreign, err);
	safetensors_free(&file);
	return rc;
}

/* step: the step it must have; -1: any. *foreign: it belongs to another network. */
static int load_checkpoint(const char *path, int64_t step, struct train_state *state,
			   struct variables *variables, bool *foreign, struct error *err)
{
	const struct variables_filter want = {.momentum = true, .strict = true};
	struct safetensors file = {0};
	struct train_state read = {0};
	int64_t tracked; /* the state has it, too */
	int rc = safetensors_read(path, &file, err);

	*foreign = false;
	if (rc)
		return rc;
	rc = read_state(path, &file, variables->graph, &read, foreign, err);
	if (!rc && step >= 0 && read.step != step)
		rc = error_set(err, ERR_DATA,
			       "%s holds step %" PRId64 ", which does not match its name", path,
			       read.step);
	if (!rc)
		rc = variables_read(path, &file, &want, variables, &tracked, err);
	safetensors_free(&file);
	if (!rc)
		*state = read;
	return rc;
}

int checkpoint_load(const char *path, struct train_state *state, struct variables *variables,
		    struct error *err)
{
	bool foreign;

	return load_checkpoint(path, -1, state, variables, &foreign, err);
}

/* The file system fails for now, which must not cost the steps since an older checkpoint. */
static bool is_unreadable_now(const char *file)
{
	struct stat info;

	return !stat(file, &info) && S_ISREG(info.st_mode) && !access(file, R_OK);
}

/* Load the checkpoint of step from directory. A file of another step is -ERR_DATA, too. *path is
 * malloced. *stop: load no other file of the directory, because this one belongs to another
 * network or the file system cannot read it now, or because memory is short. */
static int load_step(const char *directory, int64_t step, struct train_state *state,
		     struct variables *variables, char **path, bool *stop, struct error *err)
{
	char *file = checkpoint_dir_path_of(directory, step);
	bool foreign = false;
	int rc = file ? load_checkpoint(file, step, state, variables, &foreign, err)
		      : error_memory(err, "a checkpoint's name");

	log_info(LOG_RESUME, "step %" PRId64 ": %s", step, rc ? err->text : "whole");
	*stop = foreign || rc == -ERR_UNAVAILABLE;
	if (rc == -ERR_INPUT && is_unreadable_now(file)) {
		struct error why = *err;

		*stop = true;
		error_set(err, why.code,
			  "%s. Start again once it can be read, or rename it to resume from an "
			  "older one",
			  why.text);
	}
	if (foreign) {
		struct error why = *err;

		error_set(err, why.code,
			  "%s. Choose another directory with --ckpt, or start over in this one "
			  "with --resume never",
			  why.text);
	}
	if (rc)
		free(file);
	else
		*path = file;
	return rc;
}

int checkpoint_init(const char *path, bool new_head, struct train_state *state,
		    struct variables *variables, struct error *err)
{
	const struct variables_filter want = {.new_head = new_head, .strict = true};
	struct safetensors file = {0};
	int rc = safetensors_read(path, &file, err);

	if (rc)
		return error_prefix(err, "--init");
	rc = variables_read(path, &file, &want, variables, &state->batches, err);
	safetensors_free(&file);
	return rc ? error_prefix(err, "--init") : 0;
}

/* ---- the newest ---- */

int checkpoint_resume(const char *directory, const struct checkpoint_sink *sink,
		      struct train_state *state, struct variables *variables, char **path,
		      struct error *err)
{
	struct stat info;
	size_t count = 0;

	*path = NULL;
	/* If it is not a directory, writing checkpoints refuses it. */
	if (stat(directory, &info) ? errno == ENOENT || errno == ENOTDIR : !S_ISDIR(info.st_mode))
		return 0;
	int64_t *steps = checkpoint_dir_resume_order(directory, sink, &count, err);

	if (!steps)
		return -err->code;
	for (size_t i = 0; i < count && !*path; i++) {
		struct error why = {0};
		bool stop;
		int rc = load_step(directory, steps[i], state, variables, path, &stop, &why);

		if (stop) {
			free(steps);
			*err = why;
			return rc;
		}
		if (rc) {
			error_prefix(&why, "warning: skipped");
			sink->note_skipped(sink->context, why.text);
		}
	}
	free(steps);
	return 0;
}
