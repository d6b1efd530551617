/* SPDX-License-Identifier: BSD-3-Clause */
/* berth train: runs berth-train with berth run, and takes the options of both. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "arguments.h"
#include "base/bytes.h"
#include "base/file.h"
#include "container_options.h"
#include "run/run_program.h"
#include "train/train_options.h"
#include "verb.h"

struct arguments {
	struct run_options run;
	struct train_arguments train;
};

static int check_arguments(void *input, struct error *err)
{
	struct arguments *arguments = input;
	int rc = train_arguments_check(&arguments->train, err);

	if (!rc)
		rc = run_options_conflicts(&arguments->run, err);
	return rc ? rc : run_options_by_hand(&arguments->run, err);
}

/* The path of berth-train, which is next to this program. malloced; NULL if memory is out. */
static char *trainer_path(void)
{
	char self[4096] = "", *slash;

	file_find_self(self, sizeof self, NULL);
	slash = strrchr(self, '/');
	return text_format("%.*sberth-train", slash ? (int)(slash - self) + 1 : 0, self);
}

/* Show what the trainer reads and writes in the container; of what is still to be made, the
 * directory that is to hold it. */
static int show_paths(struct container *container, const struct train_options *options,
		      struct error *err)
{
	const char *data = options->data ? strchr(options->data, ':') : NULL;
	const char *const paths[] = {data ? data + 1 : options->data,
				     options->checkpoint.directory,
				     options->checkpoint.resume,
				     options->init,
				     options->metrics,
				     options->log_order};
	int rc = 0;

	for (size_t i = 0; !rc && i < sizeof paths / sizeof *paths; i++) {
		char **added, *path = paths[i] && *paths[i] == '/' ? strdup(paths[i]) : NULL;

		while (path && *path && access(path, F_OK))
			*strrchr(path, '/') = '\0';
		if (!path || !*path || container_shows(container, path)) {
			free(path);
			continue;
		}
		rc = container_check_bind(path, err);
		added = array_add(&container->binds, &container->bind_count, sizeof *added);
		if (added)
			*added = path;
		else
			free(path);
	}
	return rc;
}

static int run_trainer(struct arguments *arguments, struct error *err)
{
	const struct train_arguments *train = &arguments->train;
	const char *argv[TRAIN_MAX_ARGUMENTS + 3];
	bool inside = arguments->run.request.job.container.image != NULL;
	char *path = inside ? strdup("berth-train") : trainer_path(); /* in the image's PATH */
	int count = 0, code;

	if (!path) {
		error_memory(err, "the command line");
		return -1;
	}
	if (!inside && access(path, X_OK)) {
		error_set(
			err, ERR_UNAVAILABLE,
			"the trainer is not installed: there is no %s that can be run; the Python "
			"wheel has none: install berth from source, or its Debian package",
			path);
		free(path);
		return -1;
	}
	argv[count++] = path;
	argv[count++] = train->options.model;
	for (int i = 0; i < train->given_count; i++)
		argv[count++] = train->given[i];
	argv[count] = NULL;
	arguments->run.request.program = argv;
	arguments->run.request.own_program = true;
	code = run_program(&arguments->run);
	free(path);
	return code;
}

int verb_train(int argc, char **argv)
{
	static const struct arguments_command command = {
		.tables = {{options_table, offsetof(struct arguments, run.request.place)},
			   {run_options_table, offsetof(struct arguments, run)},
			   {container_options_table,
			    offsetof(struct arguments, run.request.job.container)},
			   {run_rendezvous_table, offsetof(struct arguments, run)},
			   {train_options_table, offsetof(struct arguments, train),
			    train_arguments_add_given}},
		.positional = {.type = ARGUMENTS_READ,
			       .offset = offsetof(struct arguments, train),
			       .read = train_arguments_add_model},
		.check = check_arguments,
		.usage = "MODEL",
		.doc = "Train MODEL (convnet, linear, resnet18, resnet34, resnet50, resnet101 or "
		       "resnet152) data-parallel on all ranks: berth run of berth-train, with "
		       "--container that of the image.\vExample: "
		       "berth train convnet -n 2 --ckpt ckpt --metrics logs",
	};
	struct arguments arguments = {0};
	struct train_options checked;
	struct error err = {0};
	int code;

	run_options_default(&arguments.run);
	train_arguments_default(&arguments.train);
	arguments_parse(&command, argc, argv, &arguments);
	/* Check the options before agents and ranks start. */
	checked = arguments.train.options;
	if (train_defaults(&checked, &err) ||
	    container_options_prepare(&arguments.run.request.job.container, &err) ||
	    (arguments.run.request.job.container.image &&
	     show_paths(&arguments.run.request.job.container, &checked, &err)))
		code = verb_fail(&err);
	else
		code = run_trainer(&arguments, &err);
	if (code < 0)
		code = verb_fail(&err);
	run_options_free(&arguments.run);
	train_arguments_free(&arguments.train);
	return code;
}
