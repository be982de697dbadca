package demo

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/alicebob/miniredis/v2"

	"github.com/weirstreams/weir/state"
	"github.com/weirstreams/weir/state/memstore"
	"github.com/weirstreams/weir/state/redisstore"
)

// Values of Config.Store; besides, the URL of a Redis.
const (
	StoreDisk          = "disk"
	StoreMemory        = "memory"
	StoreRedisEmbedded = "redis-embedded" // in this process, for people without a Redis
)

// StoreNames are the values of Config.Store but for URLs.
func StoreNames() []string { return []string{StoreDisk, StoreMemory, StoreRedisEmbedded} }

// CheckStore says what is wrong with a value of Config.Store.
func CheckStore(name string) error {
	switch name {
	case StoreDisk, StoreMemory, StoreRedisEmbedded:
		return nil
	}
	if !strings.Contains(name, "://") {
		return fmt.Errorf("%q: choose one of %s, or give the URL of a Redis, as redis://localhost:6379/0", name, strings.Join(StoreNames(), ", "))
	}
	if _, err := redisstore.ParseURL(name); err != nil {
		return fmt.Errorf("no URL of a Redis: %w", err)
	}
	return nil
}

// where says in words where the state is.
func (c *Config) where() string {
	switch c.Store {
	case StoreDisk:
		return "on disk"
	case StoreMemory:
		return "in memory"
	case StoreRedisEmbedded:
		return "in a Redis in this process"
	default:
		return "in Redis"
	}
}

// namespaceFile holds what keys in Redis begin with, for a folder that is kept.
const namespaceFile = "redis-namespace"

// store opens what keeps the state; nil stands for the library's default, the
// disk. It is closed when the run stops.
func (d *demo) store(ctx context.Context, dir string) (state.Backend, error) {
	var opts redisstore.Options
	switch d.config.Store {
	case StoreDisk:
		return nil, nil
	case StoreMemory:
		store := memstore.New()
		d.onStop(store.Close)
		return store, nil
	case StoreRedisEmbedded:
		server, err := miniredis.Run()
		if err != nil {
			return nil, fmt.Errorf("start a Redis in this process: %w", err)
		}
		d.onStop(func() error { server.Close(); return nil })
		// It keeps nothing and has no settings to look at.
		opts = redisstore.Options{Addresses: []string{server.Addr()}, Check: redisstore.CheckOff}
	default:
		var err error
		if opts, err = redisstore.ParseURL(d.config.Store); err != nil {
			return nil, err
		}
		if opts.Namespace == "" {
			if opts.Namespace, err = d.namespace(dir); err != nil {
				return nil, err
			}
		}
	}
	opts.Logger = d.log
	store, err := redisstore.Open(ctx, opts)
	if err != nil {
		return nil, err
	}
	d.onStop(store.Close)
	if !d.cluster.keeps && d.config.Store != StoreRedisEmbedded {
		d.onStop(func() error { return d.dropViews(store) })
	}
	return store, nil
}

// namespace returns what the keys in Redis begin with. State belongs to the
// topics that it was made of: those of a broker in this process have a namespace
// of their own, which is as old as they are.
func (d *demo) namespace(dir string) (string, error) {
	if len(d.config.Brokers) > 0 {
		return applicationID, nil
	}
	fresh := applicationID + "-" + strings.ToLower(rand.Text()[:8])
	if !d.cluster.keeps {
		return fresh, nil
	}
	file := filepath.Join(dir, namespaceFile)
	data, err := os.ReadFile(file)
	switch {
	case err == nil:
		return strings.TrimSpace(string(data)), nil
	case errors.Is(err, fs.ErrNotExist):
		return fresh, os.WriteFile(file, []byte(fresh+"\n"), 0o644)
	default:
		return "", err
	}
}

// tableSubtopology is the part of the topology that has the store.
const tableSubtopology = 1

// dropPatience bounds the removal of the state at the end.
const dropPatience = 10 * time.Second

// dropViews removes the state of a run whose topics are gone.
func (d *demo) dropViews(store state.Backend) error {
	ctx, cancel := context.WithTimeout(context.Background(), dropPatience)
	defer cancel()
	for p := range d.cluster.partitions {
		id := state.ID{Application: applicationID, Task: fmt.Sprintf("%d_%d", tableSubtopology, p)}
		if err := store.Drop(ctx, id); err != nil {
			return fmt.Errorf("remove the state of this run from Redis: %w", err)
		}
	}
	return nil
}
