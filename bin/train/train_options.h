/* SPDX-License-Identifier: BSD-3-Clause */
/* The options of berth-train; berth train takes them too and hands them on. */
#ifndef BERTH_BIN_TRAIN_TRAIN_OPTIONS_H
#define BERTH_BIN_TRAIN_TRAIN_OPTIONS_H

#include <argp.h>
#include <stdbool.h>

#include "base/error.h"
#include "train/run/loop.h"

#define TRAIN_MAX_ARGUMENTS 128

/* What the command line says. Strings point into argv, given's into malloced text. */
struct train_arguments {
	struct train_options options;
	int64_t print_order, epoch; /* print_order 0: train */
	bool epoch_set;
	char *given[TRAIN_MAX_ARGUMENTS]; /* the options again, "--lr=0.1", for another argv */
	int given_count;
};

void train_arguments_default(struct train_arguments *arguments);
void train_arguments_free(struct train_arguments *arguments);

/* The options and the argument MODEL, as an argp child; input: struct train_arguments. */
extern const struct argp train_argp;

#endif
