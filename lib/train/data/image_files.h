/* SPDX-License-Identifier: BSD-3-Clause */
/* Which images lie under a folder of classes, in the order of torchvision's ImageFolder. */
#ifndef BERTH_TRAIN_DATA_IMAGE_FILES_H
#define BERTH_TRAIN_DATA_IMAGE_FILES_H

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

/* Names of folders in a folder, sorted as bytes (which is Python's order for UTF-8). */
struct folder_classes {
	char **names;
	int count;
};
/* -ERR_INPUT: the folder cannot be read; -ERR_DATA: it holds no folder. */
int folder_classes(const char *folder, struct folder_classes *out, struct error *err);
void folder_classes_free(struct folder_classes *classes);
int folder_class(const struct folder_classes *classes, const char *name); /* or -1 */

/* Files, as paths below the folder, with the number of their class. */
struct folder_files {
	char *names; /* one after another, each with its NUL */
	size_t names_size, names_room;
	size_t *offsets; /* [count], in names */
	int32_t *labels; /* [count] */
	size_t count, room;
	int64_t others; /* files that are not .jpg or .jpeg */
};
/* Adds the .jpg and .jpeg files of folder/name and of all folders below it, folder after folder in
 * the order of their paths, links followed. -ERR_INPUT: a folder cannot be read; -ERR_DATA: there
 * is no such file, or folders go in a circle. */
int folder_add(struct folder_files *files, const char *folder, const char *name, int32_t label,
	       struct error *err);
void folder_files_free(struct folder_files *files);

#endif
