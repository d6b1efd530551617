/* SPDX-License-Identifier: BSD-3-Clause */
/* The options of berth-train. berth train takes them, too, and passes them on. */
#ifndef BERTH_BIN_TRAIN_TRAIN_OPTIONS_H
#define BERTH_BIN_TRAIN_TRAIN_OPTIONS_H

#include <stdbool.h>

#include "arguments.h"
#include "train/run/loop.h"

#define TRAIN_MAX_ARGUMENTS 128

/* The parsed command line. Strings point into argv; those of given are malloced. */
struct train_arguments {
	struct train_options options;
	int64_t print_order, epoch; /* print_order 0: train */
	bool epoch_set;
	char *given[TRAIN_MAX_ARGUMENTS]; /* the options again, "--lr=0.1", for another argv */
	int given_count;
};

void train_arguments_default(struct train_arguments *arguments);
void train_arguments_free(struct train_arguments *arguments);

/* The options, which fill a struct train_arguments. A command that lists this table uses
 * train_arguments_add_given as its given and train_arguments_add_model for its positional, and
 * calls train_arguments_check at the end. */
extern const struct arguments_option train_options_table[];
int train_arguments_add_model(const char *text, void *out, struct error *err);
int train_arguments_add_given(void *filled, const char *name, const char *text, struct error *err);
int train_arguments_check(void *input, struct error *err);

#endif
