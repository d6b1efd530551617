/* SPDX-License-Identifier: BSD-3-Clause */
/* Files that tests read and make. Each function fails the running test on any error. */
#ifndef BERTH_TESTS_FILES_H
#define BERTH_TESTS_FILES_H

/* Return the whole text of a file, up to its first NUL; free() it. */
char *read_text(const char *path);
/* Write a file with these permissions, in place of any that is there. */
void write_text(const char *path, const char *text, unsigned mode);

/* Make a directory below TMPDIR; the next call overwrites its path. remove_tree deletes it with
 * all that it contains. */
const char *make_dir(void);
void remove_tree(const char *path);
/* Write a file below root, and make its directories; put_link makes a symbolic link to target. */
void put(const char *root, const char *path, const char *text);
void put_link(const char *root, const char *path, const char *target);

#endif
