/* SPDX-License-Identifier: BSD-3-Clause */
/* Which images lie under a folder of classes, in the order of torchvision's ImageFolder. */
#ifndef BERTH_TRAIN_DATA_IMAGE_FILES_H
#define BERTH_TRAIN_DATA_IMAGE_FILES_H

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

/* Names of folders in a folder, sorted as bytes (which is Python's order for UTF-8). */
struct imagefolder_classes {
	char **names;
	int count;
};
/* -ERR_INPUT: the folder cannot be read; -ERR_DATA: it holds no folder. */
int imagefolder_classes(const char *directory, struct imagefolder_classes *out, struct error *err);
void imagefolder_classes_free(struct imagefolder_classes *classes);
int imagefolder_class_index(const struct imagefolder_classes *classes,
			    const char *name); /* or -1 */

/* Files, as paths below the folder, with the number of their class. */
struct imagefolder_files {
	char *names; /* one after another, each with its NUL */
	size_t names_size, names_capacity;
	size_t *offsets; /* [count], in names */
	int32_t *labels; /* [count] */
	size_t count, capacity;
	int64_t skipped_files; /* files that are not .jpg or .jpeg */
};
/* Adds the .jpg and .jpeg files of folder/name and of all folders below it, folder after folder in
 * the order of their paths, links followed. -ERR_INPUT: a folder cannot be read; -ERR_DATA: there
 * is no such file, or folders go in a circle. */
int imagefolder_add(struct imagefolder_files *files, const char *directory, const char *name,
		    int32_t label, struct error *err);
void imagefolder_files_free(struct imagefolder_files *files);

#endif
