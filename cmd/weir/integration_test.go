//go:build integration

package main

import (
	"os"
	"testing"
)

// The demo on a real Kafka, with whatever earlier runs have left on it.
func TestIntegrationBrokers(t *testing.T) {
	brokers := os.Getenv("WEIR_KAFKA")
	if brokers == "" {
		t.Fatal("WEIR_KAFKA is not set: start the services with scripts/services, or use make test-integration")
	}
	testBrokers(t, brokers)
}

// The commands about fences on a real Kafka.
func TestIntegrationFence(t *testing.T) {
	brokers := os.Getenv("WEIR_KAFKA")
	if brokers == "" {
		t.Fatal("WEIR_KAFKA is not set: start the services with scripts/services, or use make test-integration")
	}
	testFence(t, brokers)
}
