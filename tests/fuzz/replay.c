/* SPDX-License-Identifier: BSD-3-Clause */
/* Runs a fuzz target over files, without libFuzzer: replay DIRECTORY|FILE... Runs each file's
 * bytes, then all their prefixes, then the bytes with each one changed in turn, so that an input
 * also covers its neighbourhood. Exit: 0, or 66 if there is nothing to run; a finding aborts with
 * the input's name on stderr. */
#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fuzz.h"

#define NEAR_BYTES 256 /* neighbours are run for files up to this size */
#define MAX_BYTES (1 << 20)

static char running[4096];

static void say_running(int signal)
{
	(void)!write(STDERR_FILENO, running, strlen(running));
	raise(signal); /* SA_RESETHAND: this time with the default action */
}

/* Run it once, in a buffer of exactly the input's size. */
static void run(const char *path, const char *how, size_t at, const uint8_t *data, size_t size)
{
	uint8_t *copy = malloc(size ? size : 1);

	CHECK(copy);
	memcpy(copy, data, size);
	snprintf(running, sizeof running, "while running %s%s %zu\n", path, how, at);
	LLVMFuzzerTestOneInput(copy, size);
	free(copy);
}

static int replay_file(const char *path)
{
	static uint8_t data[MAX_BYTES];
	static const uint8_t changes[] = {0x01, 0x80, 0xff};
	FILE *file = fopen(path, "re");

	if (!file) {
		fprintf(stderr, "replay: cannot open %s: %s\n", path, strerror(errno));
		return -1;
	}
	size_t size = fread(data, 1, sizeof data, file);

	fclose(file);
	run(path, ", whole:", size, data, size);
	if (size > NEAR_BYTES)
		return 1;
	for (size_t i = 0; i < size; i++)
		run(path, ", the first", i, data, i);
	for (size_t i = 0; i < size; i++)
		for (size_t k = 0; k < sizeof changes; k++) {
			data[i] ^= changes[k];
			run(path, ", changed at byte", i, data, size);
			data[i] ^= changes[k];
		}
	return 1;
}

/* Number of files run, or -1. */
static int replay(const char *path)
{
	struct stat st;
	struct dirent **entries;
	int files = 0;

	if (!stat(path, &st) && !S_ISDIR(st.st_mode))
		return replay_file(path);
	int count = scandir(path, &entries, NULL, alphasort);

	if (count < 0) {
		fprintf(stderr, "replay: cannot read %s: %s\n", path, strerror(errno));
		return -1;
	}
	for (int i = 0; i < count; i++) {
		char *name;

		CHECK(asprintf(&name, "%s/%s", path, entries[i]->d_name) > 0);
		if (entries[i]->d_name[0] != '.' && files >= 0)
			files = replay_file(name) < 0 ? -1 : files + 1;
		free(name);
		free(entries[i]);
	}
	free(entries);
	return files;
}

int main(int argc, char **argv)
{
	struct sigaction action = {.sa_handler = say_running, .sa_flags = SA_RESETHAND};
	int files = 0;

	sigaction(SIGABRT, &action, NULL);
	sigaction(SIGSEGV, &action, NULL);
	for (int i = 1; i < argc; i++) {
		int some = replay(argv[i]);

		if (some < 0)
			return 66;
		files += some;
	}
	if (!files) {
		fprintf(stderr, "replay: no input; expected files, or directories with files\n");
		return 66;
	}
	printf("%d inputs and their neighbours\n", files);
	return 0;
}
