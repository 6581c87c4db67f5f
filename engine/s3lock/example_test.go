package s3lock_test

import (
	"context"
	"fmt"
	"log"

	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/engine/s3lock"
)

func ExampleNew() {
	ctx := context.Background()
	settings, err := config.LoadDefaultConfig(ctx)
	if err != nil {
		log.Fatal(err)
	}
	d, err := s3lock.New(s3.NewFromConfig(settings), "my-bucket", nil)
	if err != nil {
		log.Fatal(err)
	}
	defer d.Close()
	locks, err := leasehold.New(d, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer locks.Close()
	err = locks.Do(ctx, "orders/42", func(context.Context) error {
		fmt.Println("shipping order 42")
		return nil
	})
	if err != nil { // of ErrLost: another process may have shipped it meanwhile, roll back
		log.Fatal(err)
	}
}
